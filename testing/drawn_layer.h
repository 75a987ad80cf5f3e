// SPDX-License-Identifier: Apache-2.0
// Random layers of any spec, and calls to run on them, in two kinds:
//
//   exact   Small integers that every format holds, with scales of 1 and 2. Gates are 0 or at least 50, where
//   the
//           sigmoid, tanh and erf of float32 are exactly 1, and no sum of absolute products reaches 2^24. So
//           a float32 path must give the definition's numbers bit for bit, in whatever order it sums: what
//           differs is an indexing bug. Routing weights are powers of two. At most 4 experts a token.
//   noisy   Normal numbers through the format's own encoder, groups of different sizes, so that a scale read
//   from the
//           wrong place shows. Where there is a limit, gate and up have it as their standard deviation: about
//           16 % of the gates and 32 % of the ups exceed it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sluice/spec.h"

namespace sluice::testing {

enum class Numbers : std::uint8_t { exact, noisy };

/// The epsilon of the norm of exact latent experts: beside it every mean of squares is nothing, in double
/// too, so that the norm's factor is the exact 2^-50.
inline constexpr float kExactEpsilon = 0x1p100f;

/// How many token ids a drawn table knows.
inline constexpr int kDrawnVocabulary = 64;

/// Columns in which every token of an exact call has 3: 24, spread over the row.
bool is_anchor(std::int64_t column, int hidden);

/// Weights of `spec` whose `owner` holds the memory. Experts are drawn one by one, so the experts of a slice
/// can be taken out of the whole.
LayerWeights draw_weights(const LayerSpec& spec, Numbers numbers, std::uint64_t seed);

/// The input of a call.
struct DrawnCall {
  std::vector<std::byte> rows = {};
  RowsView hidden = {};                // of `rows`
  std::vector<std::int32_t> ids = {};  // [tokens, top_k], distinct for a token
  std::vector<float> weights = {};
  std::vector<std::int64_t> token_ids = {};

  Routing routing(int top_k) const;
};

struct CallShape {
  int tokens = 1;
  DType dtype = DType::bf16;  // of hidden
};

DrawnCall draw_call(const LayerSpec& spec, Numbers numbers, CallShape shape, std::uint64_t seed);

}  // namespace sluice::testing
