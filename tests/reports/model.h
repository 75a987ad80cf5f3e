// SPDX-License-Identifier: Apache-2.0
// Models that are read from disk after an edit.
#pragma once

#include <string_view>

#include "tests/checkpoint/edited.h"

namespace sluice::reports {

using testing::Edited;

inline testing::EditableModel fixture(std::string_view name) { return testing::EditableModel::of(name); }
inline testing::EditableModel sample(std::string_view family) {
  return testing::EditableModel::of_sample(family);
}

}  // namespace sluice::reports
