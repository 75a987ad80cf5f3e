// SPDX-License-Identifier: Apache-2.0
#include "format/mxfp4.h"

#include "format/decoding.h"
#include "format/encoding.h"
#include "format/fp4_blocks.h"
#include "format/mx.h"

namespace sluice::format {

void Mxfp4::decode_row(const WeightMatrix& matrix, std::int64_t row, float* out) {
  decode_fp4<Mxfp4>(matrix, row, out);
}

void Mxfp4::decode_row(const WeightMatrix& matrix, std::int64_t row, double* out) {
  decode_fp4<Mxfp4>(matrix, row, out);
}

Encoded Mxfp4::encode(const float* values, std::int64_t rows, std::int64_t cols) {
  check_encodable(Formats::of<Mxfp4>(), values, {rows, cols});
  Encoded encoded = make_encoded(Formats::of<Mxfp4>(), {rows, cols}, DType::f8_e8m0);
  encode_groups<Mxfp4>(values, encoded, pick_mx_scale<2>, PutE2m1{encoded});
  return encoded;
}

}  // namespace sluice::format
