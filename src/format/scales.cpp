// SPDX-License-Identifier: Apache-2.0
#include "format/scales.h"

#include <fmt/format.h>

#include "core/bits.h"
#include "core/error.h"
#include "format/bf16.h"
#include "format/e4m3.h"
#include "format/e8m0.h"
#include "format/f16.h"

namespace sluice::format {

bool is_number(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16 || dtype == DType::f8_e4m3 ||
         dtype == DType::f8_e8m0 || dtype == DType::u8;
}

float read_number(DType dtype, const std::byte* at) {
  switch (dtype) {
    case DType::f32:
      return load<float>(at);
    case DType::bf16:
      return bf16_to_float(load<std::uint16_t>(at));
    case DType::f16:
      return f16_to_float(load<std::uint16_t>(at));
    case DType::f8_e4m3:
      return e4m3_to_float(load<std::uint8_t>(at));
    case DType::f8_e8m0:
    case DType::u8:
      return e8m0_to_float(load<std::uint8_t>(at));
    default:
      break;
  }
  fail(ErrorKind::invalid_argument,
       {.code = "bad_number_type",
        .what = fmt::format("{} is no type of scales or biases", name(dtype)),
        .todo = "known are F32, BF16, F16, F8_E4M3, F8_E8M0, and U8 for powers of two"});
}

}  // namespace sluice::format
