// SPDX-License-Identifier: Apache-2.0
// The smallest checkpoint of each family, for configurations to be tried on: two layers, two experts, 32
// wide.
#pragma once

#include <string>
#include <vector>

#include "testing/safetensors_writer.h"

namespace sluice::fuzz {

struct TinyModel {
  std::string model_type;
  std::vector<testing::NamedTensor> tensors;
};

/// Values are whatever makes every scale valid; nobody computes with them.
std::vector<TinyModel> tiny_models();

}  // namespace sluice::fuzz
