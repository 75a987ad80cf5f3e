// SPDX-License-Identifier: Apache-2.0
#include "format/plain.h"

#include "core/bits.h"
#include "format/bf16.h"
#include "format/encoding.h"
#include "format/f16.h"
#include "format/formats.h"

namespace sluice::format {
namespace {

template <class Element, class Decode, class Real>
void decode_plain(const WeightMatrix& matrix, std::int64_t row, Decode decode, Real* out) {
  const std::byte* codes = matrix.codes + row * matrix.row_stride;
  for (std::int64_t c = 0; c < matrix.cols; ++c)
    out[c] = decode(load<Element>(codes + c * matrix.col_stride));
}

template <class Element, class F, class Encode>
Encoded encode_plain(const float* values, MatrixSize size, Encode encode) {
  Encoded encoded = make_encoded(Formats::of<F>(), size, DType::f32);
  for (std::int64_t i = 0; i < size.rows * size.cols; ++i)
    store<Element>(encoded.codes.data() + i * static_cast<std::int64_t>(sizeof(Element)), encode(values[i]));
  return encoded;
}

float as_it_is(float value) { return value; }

}  // namespace

void F32::decode_row(const WeightMatrix& matrix, std::int64_t row, float* out) {
  decode_plain<float>(matrix, row, as_it_is, out);
}
void F32::decode_row(const WeightMatrix& matrix, std::int64_t row, double* out) {
  decode_plain<float>(matrix, row, as_it_is, out);
}
Encoded F32::encode(const float* values, std::int64_t rows, std::int64_t cols) {
  return encode_plain<float, F32>(values, {rows, cols}, as_it_is);
}

void F16::decode_row(const WeightMatrix& matrix, std::int64_t row, float* out) {
  decode_plain<std::uint16_t>(matrix, row, f16_to_float, out);
}
void F16::decode_row(const WeightMatrix& matrix, std::int64_t row, double* out) {
  decode_plain<std::uint16_t>(matrix, row, f16_to_float, out);
}
Encoded F16::encode(const float* values, std::int64_t rows, std::int64_t cols) {
  return encode_plain<std::uint16_t, F16>(values, {rows, cols}, float_to_f16);
}

void Bf16::decode_row(const WeightMatrix& matrix, std::int64_t row, float* out) {
  decode_plain<std::uint16_t>(matrix, row, bf16_to_float, out);
}
void Bf16::decode_row(const WeightMatrix& matrix, std::int64_t row, double* out) {
  decode_plain<std::uint16_t>(matrix, row, bf16_to_float, out);
}
Encoded Bf16::encode(const float* values, std::int64_t rows, std::int64_t cols) {
  return encode_plain<std::uint16_t, Bf16>(values, {rows, cols}, float_to_bf16);
}

}  // namespace sluice::format
