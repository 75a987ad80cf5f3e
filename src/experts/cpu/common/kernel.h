// SPDX-License-Identifier: Apache-2.0
// What the half of a CPU backend that is compiled for an instruction set gives to the half that is not: one
// table of functions over raw memory.
//
// An object file compiled with -mavx2 must not define inline functions that others use too: the linker would
// keep one copy, perhaps this one, and hand it to a machine without AVX2. So this header holds aggregates
// without functions, and tests/cpu checks with nm that such objects define no weak symbol.
#pragma once

#include <cstddef>
#include <cstdint>

#include "experts/cpu/common/layout.h"

namespace sluice::cpu {

/// What a kernel has to know of an IntegerLayout beside what it is made for.
struct IntegerRecords {
  int group_steps, head_bytes, number_bytes;
  ScaleType scales;
  bool zeros;
};

/// out[block][token][row] = sum over columns of weights[row][column] * input[token][column], for consecutive
/// pairs of one matrix or two (see layout.h).
struct Multiplication {
  const std::byte* weights;    // the first pair
  std::size_t pair_bytes;      // from one pair to the next
  std::size_t factors_offset;  // within a pair
  int pairs;
  int groups;                 // of columns; steps where weights are integers
  IntegerRecords integers;    // of integers
  const float* input;         // [tokens, input_stride], columns padded with zeros to whole groups
  std::size_t input_stride;   // in floats
  const void* digits;         // the same inputs in fixed point (digits.h), for kernels that read those
  std::size_t digits_stride;  // in bytes
  const std::int32_t* bf16;   // the same inputs as pairs of bf16 (bf16_pairs.h), for kernels that read those
  std::size_t bf16_stride;    // in pairs
  std::size_t bf16_term;      // from one term of a row to the next, in pairs
  int bf16_terms;             // of every row
  int tokens;
  float* out[2];           // of blocks 0 and 1 of the first pair, [tokens, out_stride], `lanes` rows each
  std::size_t out_stride;  // in floats
  std::size_t out_step;    // in floats, from one pair's rows to the next
};

using Multiply = void (*)(const Multiplication&);

/// Kernels that read digits and agree to the bit: `one` reads ByteDigits of a single token, `several` those
/// of any number, or WordDigits.
struct DigitKernels {
  Multiply one, several;
  bool several_reads_words = false;
};

/// A kernel that reads pairs of bf16, where there is one. Experts with fewer than `from` tokens are
/// multiplied as if there were none: what few tokens wait for is not the products.
struct Bf16Kernel {
  Multiply multiply = nullptr;
  int from = 1;
};

/// Kernels of one width of integers, by the columns that a scale covers of a step (layout.h): 32, or 16.
struct IntegerKernels {
  struct OfPart {
    Multiply multiply;
    DigitKernels digits;
    Bf16Kernel bf16{};
  };
  OfPart wholes, halves;
  OfPart minimums{};  // wholes with a minimum; of 4 and 5 bits
};

/// Kernels that read pairs of bf16, by layout. They read rows that are sums of up to `terms` rows of bf16; 0
/// where there are none.
struct Bf16Kernels {
  Bf16Kernel bf16{}, mxfp4{}, nvfp4{}, mxfp8{}, fp8_block128{}, fp8_rows{};
  int terms = 0;
};

/// One entry a layout of layout.h. A layout with digit kernels has `multiply` for rows that to_digits
/// refuses: NaN, infinities, and values that fixed point would lose too much of.
struct KernelTable {
  int lanes;
  Multiply f32, f16, bf16, mxfp4, nvfp4, mxfp8, fp8_block128, fp8_rows;
  DigitKernels mxfp4_digits, nvfp4_digits;
  IntegerKernels int2, int3, int4, int5, int6, int7, int8;
  Bf16Kernels bf16_pairs{};
  bool rounds_to_int8 = false;  // what it calls digits are rows in int8 (int8.h)
};

}  // namespace sluice::cpu
