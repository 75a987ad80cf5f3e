// SPDX-License-Identifier: Apache-2.0
// What the ways of computing a call share: its sizes, its part of the workspace, and its products.
#pragma once

#include "experts/cuda/mma/enqueue.h"
#include "experts/cuda/mma/multiply.h"
#include "experts/cuda/mma/small.h"
#include "experts/cuda/mma/start.h"

namespace sluice::cuda {

struct Call {
  const Packed& packed;
  const CardCall& card;

  const ExpertsSpec& spec() const { return packed.spec; }
  std::size_t slots() const {
    return static_cast<std::size_t>(card.input.rows) * static_cast<std::size_t>(card.top_k);
  }
  bool weighted() const { return spec().weight_on_input; }
  bool gathered() const { return packed.layout.gathered != 0; }
  /// Every slot has an input of its own.
  bool apart() const { return weighted() || gathered(); }
  /// Columns of the up product, and what it makes.
  int hidden() const { return gathered() ? packed.layout.gathered : spec().hidden; }
  int intermediate() const { return packed.layout.up.rows; }
  /// Rows that copies of 16 bytes can read as they are. Many tokens are worth a copy in the order in which
  /// the products read them, whole lines at a time: without it L2 was busy for 70 % of the gate and up
  /// product.
  bool as_given() const {
    return !apart() && card.input.rows <= kFewTokens && card.input.dtype == DType::bf16 &&
           spec().hidden % 8 == 0 && card.input.row_stride % 16 == 0 &&
           reinterpret_cast<std::uintptr_t>(card.input.data) % 16 == 0;
  }
};

struct Buffers {
  Planes input, mid;
  float* down;              // [slots, hidden]; in one launch [down_parts, slots, hidden]
  std::int32_t* local;      // [slots]
  std::int32_t* positions;  // [slots]
  std::int32_t* rows;       // [slots]
  std::int32_t* counts;     // [2, kWidths], and how many positions there are
  Tile* tiles;              // [2, kWidths, most_tiles]
  int most_tiles;
  float *low, *added;  // of adapters (LoraWork); null where the call has none
  std::size_t bytes;
};

/// Terms that hold an input of this type exactly. F16 needs two; there are kernels for one and three.
int terms_of(DType dtype, bool weighted);

/// Places in the call's workspace; without memory they are only counted.
Buffers lay_out(const Call& call, std::byte* memory);

/// The input as the products read it: as it was given, or staged. Staging reads b.local for what is gathered
/// or leaves rows untouched.
Planes stage_input(const Call& call, const Buffers& b, After after);

/// The two products, without their lists.
Product up_product(const Call& call, const Buffers& b, const Planes& input);
Product down_product(const Call& call, const Buffers& b, const Product& up);

/// Puts into b.added what the call's adapters add to the sums of a product, if it has any.
void enqueue_adapters(const Call& call, const Buffers& b, const Product& product);

/// The ordered sum of a token's experts.
void combine_slots(const Call& call, const float* down, const std::int32_t* local);

/// In four launches on warpgroups, for many tokens (warpgroup.cuh): whether the call is computed so, what it
/// takes of the workspace, and that.
bool takes_warpgroups(const Call& call);
std::size_t warpgroup_bytes(const Call& call);
void enqueue_warpgroups(const Call& call);

/// Everything in one launch, for few tokens (decode.cuh): whether the call can be computed so, and that.
bool fits_one_launch(const Call& call);
void enqueue_one_launch(const Call& call, const Buffers& b);

}  // namespace sluice::cuda
