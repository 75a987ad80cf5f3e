// SPDX-License-Identifier: Apache-2.0
// Models that are read from disk after an edit.
#pragma once

#include <functional>
#include <string>

#include "sluice/checkpoint.h"
#include "tests/checkpoint/editable_model.h"

namespace sluice::reports {

/// A fixture or a sample after an edit, opened. The files are gone with the object.
class Edited {
 public:
  template <class Edit>
  Edited(testing::EditableModel model, Edit edit) {
    edit(model);
    model.write(directory_.path());
    model_ = Checkpoint::open(directory_.path().string());
  }
  explicit Edited(testing::EditableModel model) : Edited(std::move(model), [](auto&) {}) {}

  const Checkpoint* operator->() const { return &model_; }
  const Checkpoint& operator*() const { return model_; }
  bool notes(std::string_view part) const {
    for (const std::string& note : model_.info().notes)
      if (note.find(part) != note.npos) return true;
    return false;
  }

 private:
  testing::TemporaryDirectory directory_;
  Checkpoint model_;
};

inline testing::EditableModel fixture(std::string_view name) { return testing::EditableModel::of(name); }
inline testing::EditableModel sample(std::string_view family) {
  return testing::EditableModel::of_sample(family);
}

}  // namespace sluice::reports
