// SPDX-License-Identifier: Apache-2.0
// The layers of published models, written out.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "sluice/spec.h"

namespace sluice::golden {

struct Model {
  std::string name;  // of the golden file
  LayerSpec layer;
};

std::vector<Model> models();

/// GoogleTest would print the bytes.
inline void PrintTo(const Model& model, std::ostream* out) { *out << model.name; }

}  // namespace sluice::golden
