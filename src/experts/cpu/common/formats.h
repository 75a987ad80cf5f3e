// SPDX-License-Identifier: Apache-2.0
// Which layout and which kernel a weight format has. A format that is not named here has neither: no CPU
// backend may declare it.
#pragma once

#include "experts/cpu/common/kernel.h"
#include "experts/cpu/common/layout.h"
#include "format/formats.h"

namespace sluice::cpu {

struct FormatKernel {
  Layout layout{};
  Multiply KernelTable::*multiply = nullptr;
  DigitKernels KernelTable::*digits = nullptr;      // used where there are any
  IntegerKernels KernelTable::*integers = nullptr;  // of integers, which have nothing of the above
  Bf16Kernel Bf16Kernels::*bf16 = nullptr;          // used for rows of bf16 where the table has any
};

template <class F>
inline constexpr FormatKernel kFormatKernel{};
template <>
inline constexpr FormatKernel kFormatKernel<format::F32>{kF32, &KernelTable::f32};
template <>
inline constexpr FormatKernel kFormatKernel<format::F16>{kF16, &KernelTable::f16};
template <>
inline constexpr FormatKernel kFormatKernel<format::Bf16>{
    .layout = kBf16, .multiply = &KernelTable::bf16, .bf16 = &Bf16Kernels::bf16};
template <>
inline constexpr FormatKernel kFormatKernel<format::Mxfp4>{.layout = kMxfp4,
                                                           .multiply = &KernelTable::mxfp4,
                                                           .digits = &KernelTable::mxfp4_digits,
                                                           .bf16 = &Bf16Kernels::mxfp4};
template <>
inline constexpr FormatKernel kFormatKernel<format::Nvfp4>{.layout = kNvfp4,
                                                           .multiply = &KernelTable::nvfp4,
                                                           .digits = &KernelTable::nvfp4_digits,
                                                           .bf16 = &Bf16Kernels::nvfp4};
template <>
inline constexpr FormatKernel kFormatKernel<format::Mxfp8>{
    .layout = kMxfp8, .multiply = &KernelTable::mxfp8, .bf16 = &Bf16Kernels::mxfp8};
template <>
inline constexpr FormatKernel kFormatKernel<format::Fp8Block128>{
    .layout = kFp8Block128, .multiply = &KernelTable::fp8_block128, .bf16 = &Bf16Kernels::fp8_block128};
template <>
inline constexpr FormatKernel kFormatKernel<format::Fp8Channel>{
    .layout = kFp8Rows, .multiply = &KernelTable::fp8_rows, .bf16 = &Bf16Kernels::fp8_rows};
template <>
inline constexpr FormatKernel kFormatKernel<format::Fp8Tensor>{
    .layout = kFp8Rows, .multiply = &KernelTable::fp8_rows, .bf16 = &Bf16Kernels::fp8_rows};
template <>
inline constexpr FormatKernel kFormatKernel<format::Int2>{.integers = &KernelTable::int2};
template <>
inline constexpr FormatKernel kFormatKernel<format::Int3>{.integers = &KernelTable::int3};
template <>
inline constexpr FormatKernel kFormatKernel<format::Int4>{.integers = &KernelTable::int4};
template <>
inline constexpr FormatKernel kFormatKernel<format::Int5>{.integers = &KernelTable::int5};
template <>
inline constexpr FormatKernel kFormatKernel<format::Int6>{.integers = &KernelTable::int6};
template <>
inline constexpr FormatKernel kFormatKernel<format::Int7>{.integers = &KernelTable::int7};
template <>
inline constexpr FormatKernel kFormatKernel<format::Int8>{.integers = &KernelTable::int8};
template <>
inline constexpr FormatKernel kFormatKernel<format::Q4_0>{.integers = &KernelTable::int4};
template <>
inline constexpr FormatKernel kFormatKernel<format::Q8_0>{.integers = &KernelTable::int8};
template <>
inline constexpr FormatKernel kFormatKernel<format::Q4K>{.integers = &KernelTable::int4};
template <>
inline constexpr FormatKernel kFormatKernel<format::Q5K>{.integers = &KernelTable::int5};
template <>
inline constexpr FormatKernel kFormatKernel<format::Q6K>{.integers = &KernelTable::int6};

inline const FormatKernel& format_kernel(Format format) {
  return *Formats::visit(format, []<class F>() { return &kFormatKernel<F>; });
}

}  // namespace sluice::cpu
