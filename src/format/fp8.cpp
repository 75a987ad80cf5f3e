// SPDX-License-Identifier: Apache-2.0
#include "format/fp8.h"

#include <limits>

#include "format/decoding.h"
#include "format/encoding.h"

namespace sluice::format {
namespace {

template <class F, class Real>
void decode_fp8(const WeightMatrix& matrix, std::int64_t row, Real* out) {
  decode_scaled<F>(matrix, row, E4m3Element{matrix.col_stride}, out);
}

/// A scale below the normal numbers would be imprecise, or zero.
double pick_scale(float amax, std::byte* at) {
  const float scale = amax == 0 ? 1.0f : std::max(amax / kE4m3Max, std::numeric_limits<float>::min());
  store(at, scale);
  return scale;
}

template <class F>
Encoded encode_fp8(const float* values, MatrixSize size) {
  check_encodable(Formats::of<F>(), values, size);
  Encoded encoded = make_encoded(Formats::of<F>(), size, DType::f32);
  encode_groups<F>(values, encoded, pick_scale, PutE4m3{encoded});
  return encoded;
}

}  // namespace

void Fp8Block128::decode_row(const WeightMatrix& matrix, std::int64_t row, float* out) {
  decode_fp8<Fp8Block128>(matrix, row, out);
}
void Fp8Block128::decode_row(const WeightMatrix& matrix, std::int64_t row, double* out) {
  decode_fp8<Fp8Block128>(matrix, row, out);
}
Encoded Fp8Block128::encode(const float* values, std::int64_t rows, std::int64_t cols) {
  return encode_fp8<Fp8Block128>(values, {rows, cols});
}

void Fp8Channel::decode_row(const WeightMatrix& matrix, std::int64_t row, float* out) {
  decode_fp8<Fp8Channel>(matrix, row, out);
}
void Fp8Channel::decode_row(const WeightMatrix& matrix, std::int64_t row, double* out) {
  decode_fp8<Fp8Channel>(matrix, row, out);
}
Encoded Fp8Channel::encode(const float* values, std::int64_t rows, std::int64_t cols) {
  return encode_fp8<Fp8Channel>(values, {rows, cols});
}

void Fp8Tensor::decode_row(const WeightMatrix& matrix, std::int64_t row, float* out) {
  decode_fp8<Fp8Tensor>(matrix, row, out);
}
void Fp8Tensor::decode_row(const WeightMatrix& matrix, std::int64_t row, double* out) {
  decode_fp8<Fp8Tensor>(matrix, row, out);
}
Encoded Fp8Tensor::encode(const float* values, std::int64_t rows, std::int64_t cols) {
  return encode_fp8<Fp8Tensor>(values, {rows, cols});
}

}  // namespace sluice::format
