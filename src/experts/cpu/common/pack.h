// SPDX-License-Identifier: Apache-2.0
// From canonical weights to the layout of layout.h. Plain code for any machine; lanes are 8 or 16.
#pragma once

#include <memory>

#include "experts/backend.h"
#include "experts/cpu/common/packed.h"

namespace sluice::cpu {

std::unique_ptr<PackedExperts> pack(const Backend& backend, int lanes, const PackInput& input);

/// Of the layout, for Keeping: raised whenever pack makes other bytes (tests/cpu/packing_test.cpp notices).
inline constexpr int kLayoutVersion = 1;

/// For Keeping. Columns that kernels gather are not believed but written anew.
std::span<const std::byte> bytes(const PackedExperts& packed);
std::unique_ptr<PackedExperts> adopt(const Backend& backend, int lanes, const PackInput& input,
                                     PackedBytes bytes);

/// Packs one expert anew, in place. Throws unsupported (update_does_not_fit) for integers that need another
/// layout.
void update(PackedExperts& packed, const UpdateInput& input);

/// Bytes that pack will allocate, where integers have 16-bit scales and, with act-order, groups of the size
/// that they declare.
std::int64_t packed_bytes(const ExpertsSpec& spec, int lanes);

/// Pairs [first, last) of a stream.
struct PairRange {
  int first, last;
};

/// The matrices that blocks 0 and 1 of a stream's pairs come from; twice the same one for neighbours.
struct PairSource {
  const WeightMatrix* block[2];
};

/// Writes pairs `range` of `stream`, whose first pair is at `pairs`.
void pack_pairs(const Stream& stream, int lanes, const PairSource& source, PairRange range, std::byte* pairs);
/// The same for a stream of integers, and with the first pair the order of their columns. `expert` is where
/// the expert starts.
void pack_integers(const Stream& stream, int lanes, const PairSource& source, PairRange range,
                   std::byte* expert);
/// Writes that order, of a stream that gathers.
void pack_order(const Stream& stream, const PairSource& source, std::byte* expert);

}  // namespace sluice::cpu
