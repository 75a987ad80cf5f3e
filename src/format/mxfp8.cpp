// SPDX-License-Identifier: Apache-2.0
#include "format/mxfp8.h"

#include "format/decoding.h"
#include "format/encoding.h"
#include "format/mx.h"

namespace sluice::format {

void Mxfp8::decode_row(const WeightMatrix& matrix, std::int64_t row, float* out) {
  decode_scaled<Mxfp8>(matrix, row, E4m3Element{matrix.col_stride}, out);
}

void Mxfp8::decode_row(const WeightMatrix& matrix, std::int64_t row, double* out) {
  decode_scaled<Mxfp8>(matrix, row, E4m3Element{matrix.col_stride}, out);
}

Encoded Mxfp8::encode(const float* values, std::int64_t rows, std::int64_t cols) {
  check_encodable(Formats::of<Mxfp8>(), values, {rows, cols});
  Encoded encoded = make_encoded(Formats::of<Mxfp8>(), {rows, cols}, DType::f8_e8m0);
  encode_groups<Mxfp8>(values, encoded, pick_mx_scale<8>, PutE4m3{encoded});
  return encoded;
}

}  // namespace sluice::format
