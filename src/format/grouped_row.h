// SPDX-License-Identifier: Apache-2.0
// A row of any integer format, of safetensors (format/integers.h) or of GGUF (format/ggml_blocks.h), as
// kernels that pack their own layout want it:
//
//   value = (code - zero) * scale - minimum
//
// with one scale, zero and minimum for a group of neighbouring columns. All of them are exact. Where columns
// are in an order of their own (act-order) there are no such groups, and integers.h has to be asked.
#pragma once

#include <cstdint>

#include "sluice/spec.h"

namespace sluice::format {

struct GroupedShape {
  int bits = 0;              // of a code
  std::int64_t columns = 0;  // of a group; the last one may be smaller
  std::int64_t groups = 0;   // of a row
  bool minimums = false;     // some are not zero
};

/// True for matrices that grouped_row reads.
bool has_grouped_rows(const WeightMatrix& matrix);
GroupedShape grouped_shape(const WeightMatrix& matrix);

/// Where grouped_row writes.
struct GroupedRow {
  std::uint8_t* codes = nullptr;  // [cols]
  float* scales = nullptr;        // [groups]
  std::uint8_t* zeros = nullptr;  // [groups]
  float* minimums = nullptr;      // [groups]; zeros where the format has none
};
void grouped_row(const WeightMatrix& matrix, std::int64_t row, const GroupedRow& out);

/// Where block_row writes: a row of whole blocks of GGUF, its numbers as the file has them. A group's scale
/// is the number of its block times the group's factor, and so is its minimum.
struct BlockRow {
  std::uint8_t* codes = nullptr;             // [whole blocks of columns]
  std::uint16_t* numbers = nullptr;          // [blocks]: binary16
  std::uint16_t* minimum_numbers = nullptr;  // [blocks]; zeros where the format has no minimums
  std::int8_t* factors = nullptr;            // [groups]; 1 where a block has but its number
  std::uint8_t* minimum_factors = nullptr;   // [groups], of 6 bits; zeros where there are no minimums
};
void block_row(const WeightMatrix& matrix, std::int64_t row, const BlockRow& out);

}  // namespace sluice::format
