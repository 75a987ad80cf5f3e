// SPDX-License-Identifier: Apache-2.0
// Models that are read from disk after an edit.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "sluice/checkpoint.h"
#include "tests/checkpoint/editable_model.h"

namespace sluice::testing {

/// A fixture or a sample after an edit, opened. The files are gone with the object.
class Edited {
 public:
  template <class Edit>
  Edited(EditableModel model, Edit edit) {
    edit(model);
    model.write(directory_.path());
    model_ = Checkpoint::open(directory_.path().string());
  }
  explicit Edited(EditableModel model) : Edited(std::move(model), [](auto&) {}) {}

  const Checkpoint* operator->() const { return &model_; }
  const Checkpoint& operator*() const { return model_; }
  bool notes(std::string_view part) const {
    return std::ranges::any_of(model_.info().notes,
                               [&](const std::string& one) { return one.find(part) != one.npos; });
  }

 private:
  TemporaryDirectory directory_;
  Checkpoint model_;
};

}  // namespace sluice::testing
