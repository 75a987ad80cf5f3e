// SPDX-License-Identifier: Apache-2.0
// What one matrix's values are like: counted in one pass over its bytes, judged later (findings.h).
#pragma once

#include <array>
#include <cstdint>
#include <limits>

#include "format/scale_faults.h"
#include "sluice/spec.h"

namespace sluice::linting {

/// How the codes of a matrix are looked at.
enum class Kind : std::uint8_t { plain, e2m1, e4m3, integers, decoded };
Kind kind_of(const WeightMatrix& matrix);

struct ScaleFacts {
  std::int64_t count = 0;
  std::array<std::int64_t, format::kScaleFaults> faults = {};
  std::array<std::int64_t, format::kScaleFaults> first_row = {}, first_col = {};  // of the faults
  float smallest = std::numeric_limits<float>::infinity(), largest = 0;           // magnitudes of good ones
  double log2_sum = 0;                                                            // of good ones
  std::int64_t at_bottom = 0, at_top = 0;                                         // of one-byte types

  std::int64_t good() const;
};

struct Facts {
  Kind kind = Kind::decoded;
  std::int64_t weights = 0;
  std::uint64_t hash = 0;
  std::array<std::int64_t, 256> codes = {};  // how often; of e2m1 16 of them, of integers 2^bits
  std::int64_t zeros = 0;                    // weights that are zero; of integers, the middle code
  std::int64_t not_finite = 0;
  std::int64_t denormal = 0;  // of plain numbers
  std::int64_t top = 0;       // codes of the largest magnitude there is
  double log2_sum = 0;        // of magnitudes other than zero, scales left out
  std::int64_t log2_count = 0;
  ScaleFacts scales = {};
  unsigned smallest_zero_point = 255, largest_zero_point = 0;
  std::int64_t zero_points = 0, wrapped_zero_points = 0;
  std::int64_t smallest_group = 0, largest_group = 0;  // columns, with act-order
  bool bad_groups = false;

  bool all_zero() const { return weights > 0 && zeros == weights && zero_points == 0; }
  bool one_code() const;
  /// Mean log2 of weights other than zero, second scale included.
  double magnitude(const WeightMatrix& matrix) const;
};

Facts look_at(const WeightMatrix& matrix);

/// Equal storage, codes, scales, zero points and order of columns, byte by byte.
bool same_matrix(const WeightMatrix& a, const WeightMatrix& b);

}  // namespace sluice::linting
