// SPDX-License-Identifier: Apache-2.0
// The families of the samples as data. Only the sample writers include this.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "testing/sample_schemes.h"

namespace sluice::testing::sample {

/// Sizes of the samples. Intermediate sizes that are no multiple of 128 exercise the last, partial groups.
struct Shape {
  int hidden = 128, intermediate = 96, experts = 8, top_k = 4, layers = 2, vocabulary = 64;
  int first = 0;   // layers before it have no experts and are left out
  int latent = 0;  // width of the routed experts' rows; 0: hidden

  int expert_hidden() const { return latent > 0 ? latent : hidden; }
};

/// What a family needs to know of a flavour.
struct Flavour {
  std::string_view name;
  Shape shape;
  AddMatrix add_matrix;            // an expert's matrix; unused by gpt-oss
  AddMatrix add_shared = nullptr;  // a shared expert's
  AddMatrix add_latent = nullptr;  // of the projections around latent experts
  void (*add_layer)(Shard&, const Flavour&, int layer);
  nlohmann::ordered_json (*config)(const Flavour&);
  bool file_each_layer = false;       // shards with an index, otherwise one file
  const void* description = nullptr;  // a Block of flavours made of one (sample_blocks.h)
};

std::span<const Flavour> flavours();

}  // namespace sluice::testing::sample
