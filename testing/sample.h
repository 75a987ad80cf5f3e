// SPDX-License-Identifier: Apache-2.0
// Small checkpoints with drawn weights, in the layouts in which public models ship: tensor names, packing
// orders, scale types and configuration fields as published. For `sluice sample` and for tests that need a
// model.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/spec.h"

namespace sluice::testing {

/// "gpt-oss", "deepseek-v4-nvfp4", ...
std::span<const std::string_view> sample_families();
/// Those that are a GGUF file, which is no directory that Checkpoint::open takes: "deepseek-gguf".
std::span<const std::string_view> gguf_sample_families();

/// What was written.
struct SampleFiles {
  std::vector<int> layers;
  std::vector<std::string> names;  // inside the directory
  std::int64_t bytes = 0;
};

/// Writes config.json and safetensors files, or model.gguf, into `directory`, which is created. The same seed
/// gives the same bytes. Inputs of unit variance exceed the clamp of families that have one in more than a
/// tenth of gate and up values. Throws invalid_argument for an unknown family and io when the directory
/// cannot be written or has a model.
SampleFiles write_sample(std::string_view family, const std::string& directory, std::uint64_t seed);

/// Bits that a weight of the experts' matrices takes, scales included: 4.25 for mxfp4.
double bits_a_weight(const ExpertsSpec& spec);

}  // namespace sluice::testing
