// SPDX-License-Identifier: Apache-2.0
// An oracle that shares no code with us: the host conversions of the CUDA toolkit's headers. Built only where
// they are found; elsewhere no_cuda_test.cpp says that this was skipped.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp4.h>
#include <cuda_fp8.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "format/bf16.h"
#include "format/e2m1.h"
#include "format/e4m3.h"
#include "format/e8m0.h"
#include "format/f16.h"

namespace sluice::format {
namespace {

void expect_same(float got, float want, unsigned code) {
  if (std::isnan(want))
    EXPECT_TRUE(std::isnan(got)) << code;
  else
    EXPECT_EQ(bits_as<std::uint32_t>(got), bits_as<std::uint32_t>(want)) << code;
}

/// Every float32 whose upper 16 bits are anything and whose lower bits are the ones where rounding turns.
template <class Visit>
void each_float(Visit visit) {
  for (std::uint32_t high = 0; high < 65536; ++high)
    for (const std::uint32_t low : {0x0000u, 0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu, 0x1000u, 0x0FFFu})
      visit(bits_as<float>(high << 16 | low));
}

TEST(CudaToolkit, DecodesEveryCodeAsWeDo) {
  for (unsigned code = 0; code < 256; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    expect_same(e4m3_to_float(byte), __half2float(__half(__nv_cvt_fp8_to_halfraw(byte, __NV_E4M3))), code);
    expect_same(e8m0_to_float(byte), __bfloat162float(__nv_bfloat16(__nv_cvt_e8m0_to_bf16raw(byte))), code);
  }
  for (unsigned code = 0; code < 16; ++code) {
    const auto nibble = static_cast<std::uint8_t>(code);
    expect_same(e2m1_to_float(nibble), __half2float(__half(__nv_cvt_fp4_to_halfraw(nibble, __NV_E2M1))),
                code);
  }
  for (unsigned code = 0; code < 65536; ++code) {
    const auto word = static_cast<std::uint16_t>(code);
    expect_same(bf16_to_float(word), __bfloat162float(__nv_bfloat16(__nv_bfloat16_raw{word})), code);
    expect_same(f16_to_float(word), __half2float(__half(__half_raw{word})), code);
  }
}

TEST(CudaToolkit, EncodesAsWeDo) {
  each_float([](float x) {
    if (std::isnan(x)) {
      EXPECT_EQ(float_to_e2m1(x), __nv_cvt_float_to_fp4(x, __NV_E2M1, cudaRoundNearest));
      return;  // the other types keep a payload each in its own way
    }
    ASSERT_EQ(float_to_e2m1(x), __nv_cvt_float_to_fp4(x, __NV_E2M1, cudaRoundNearest)) << x;
    ASSERT_EQ(float_to_e4m3(x), __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3)) << x;
    ASSERT_EQ(float_to_bf16(x), __nv_bfloat16_raw(__float2bfloat16_rn(x)).x) << x;
    ASSERT_EQ(float_to_f16(x), __half_raw(__float2half_rn(x)).x) << x;
  });
}

}  // namespace
}  // namespace sluice::format
