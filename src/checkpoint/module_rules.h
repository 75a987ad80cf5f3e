// SPDX-License-Identifier: Apache-2.0
// Which modules a line of a quantisation configuration means: ignore lists, modules_to_not_convert, targets.
//
//   "model.layers.3.mlp.gate", "mlp.gate", "lm_head"   whole components of a module's name, wherever they
//   stand in it "model.layers.*.self_attn", "*gate*"               '*' stands for anything; names below what
//   matches match, too "re:.*mlp[.]gate$"                                 a regular expression that must
//   match from the start
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "checkpoint/pattern.h"

namespace sluice::checkpoint {

class ModuleRules {
 public:
  ModuleRules() = default;
  /// Throws corrupt_file for a regular expression that makes no sense; `file_name` is for the message.
  ModuleRules(const std::vector<std::string>& rules, const std::string& file_name);

  static ModuleRules everything();

  bool match(std::string_view module) const;

 private:
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  bool everything_ = false;
  std::unordered_set<std::string, Hash, std::equal_to<>> names_;
  std::vector<std::string> globs_;
  std::vector<Pattern> patterns_;
};

}  // namespace sluice::checkpoint
