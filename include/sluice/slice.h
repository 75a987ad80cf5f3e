// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism: a layer cut along its intermediate width, one part a rank. Every part is a layer of its
// own; what they give, summed, is what the whole gives (docs/decisions/018-slices.md).
//
//   sluice::LayerSlice mine = sluice::slice(spec, weights, sluice::even_share(spec, rank, ranks));
//   sluice::Layer layer(sluice::choose({.layer = mine.spec, .device = sluice::detect()}), mine.weights);
#pragma once

#include "sluice/lora.h"
#include "sluice/spec.h"

namespace sluice {

/// Intermediate numbers [first, last).
struct IntermediateRange {
  int first = 0, last = 0;
  friend bool operator==(const IntermediateRange&, const IntermediateRange&) = default;
};

/// What a rank computes. Ranges of ranks must cover the width without overlap; they need not be equal, nor
/// end where a quantisation group does. `shared` is not read where there is no shared expert.
struct SliceRange {
  IntermediateRange routed, shared = {};
};

/// Part `rank` of `ranks`, as even as whole numbers allow. Throws invalid_argument "bad_slice".
SliceRange even_share(const LayerSpec& spec, int rank, int ranks);

/// A part. Where a cut falls inside a group of columns, or a tile of rows, that shares a scale, the part
/// reaches to the end of the group: `reach` is what its intermediate width stands for. Down has zeros in the
/// columns that are another rank's, so that no number is counted twice.
struct LayerSlice {
  LayerSpec spec;
  LayerWeights weights;
  SliceRange range, reach;
};

/// Cuts rows of gate and up and columns of down, of routed and shared experts, all biases included: the down
/// bias is with the part that has the first column, and with no other. The router is whole everywhere. Views
/// of `weights` where nothing but strides changes, copies elsewhere; LayerSlice::weights.owner keeps both.
/// Throws invalid_argument: "bad_slice" for a range that is empty or outside, and as validate.
/// Throws unsupported "slice_in_group" where a cut is within a group of "q4_k" or "q5_k", which has no zero.
///
/// The projections around latent experts are whole everywhere. They are linear, so the parts' results sum to
/// the whole's as well, but not through a norm: a part is then marked (LatentSpec::part), gives latent_out
/// and shared_out, and the sum of latent_out goes through from_latent of any part.
///
/// The parts' results sum to the whole's within rounding, and bit for bit where no sum rounds. Where gate and
/// up overflow to infinity a rank may have NaN where the whole has infinity.
LayerSlice slice(const LayerSpec& spec, const LayerWeights& weights, const SliceRange& range);

/// The part of an adapter of the whole layer.
LoraAdapter slice(const LoraAdapter& adapter, const LayerSlice& part);

}  // namespace sluice
