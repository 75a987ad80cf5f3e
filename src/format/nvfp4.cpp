// SPDX-License-Identifier: Apache-2.0
#include "format/nvfp4.h"

#include <limits>

#include "format/decoding.h"
#include "format/encoding.h"
#include "format/fp4_blocks.h"

namespace sluice::format {
namespace {

constexpr double kSmallestScale = 1.0 / 512;  // of e4m3, 2^-9

/// The second scale must not be subnormal, or the quotients by it lose bits.
float pick_second_scale(float amax) {
  if (amax == 0) return 1.0f;
  return std::max(amax / (kE2m1Max * kE4m3Max), std::numeric_limits<float>::min());
}

}  // namespace

void Nvfp4::decode_row_unscaled(const WeightMatrix& matrix, std::int64_t row, float* out) {
  decode_fp4<Nvfp4>(matrix, row, out);
}

void Nvfp4::decode_row(const WeightMatrix& matrix, std::int64_t row, float* out) {
  decode_row_unscaled(matrix, row, out);
  for (std::int64_t c = 0; c < matrix.cols; ++c) out[c] *= matrix.second_scale;
}

void Nvfp4::decode_row(const WeightMatrix& matrix, std::int64_t row, double* out) {
  decode_fp4<Nvfp4>(matrix, row, out);
  for (std::int64_t c = 0; c < matrix.cols; ++c) out[c] *= matrix.second_scale;
}

Encoded Nvfp4::encode(const float* values, std::int64_t rows, std::int64_t cols) {
  check_encodable(Formats::of<Nvfp4>(), values, {rows, cols});
  Encoded encoded = make_encoded(Formats::of<Nvfp4>(), {rows, cols}, DType::f8_e4m3);
  const float amax = Group{.values = values, .last_row = rows, .last_col = cols, .stride = cols}.amax();
  const double second = encoded.matrix.second_scale = pick_second_scale(amax);
  const auto pick = [&](float group_amax, std::byte* at) {
    const double wanted = amax == 0 ? 1.0 : std::max(group_amax / (kE2m1Max * second), kSmallestScale);
    const std::uint8_t code = float_to_e4m3(static_cast<float>(wanted));
    store(at, code);
    return e4m3_to_float(code) * second;
  };
  encode_groups<Nvfp4>(values, encoded, pick, PutE2m1{encoded});
  return encoded;
}

}  // namespace sluice::format
