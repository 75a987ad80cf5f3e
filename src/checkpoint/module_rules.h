// SPDX-License-Identifier: Apache-2.0
// Which modules a line of a quantisation configuration means: ignore lists, modules_to_not_convert, targets.
// The methods' authors match names in three ways; docs/checkpoints.md says what each means.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "checkpoint/pattern.h"

namespace sluice::checkpoint {

/// Everywhere "re:..." is a regular expression that must match from the start.
enum class Matching : std::uint8_t {
  subtrees,   // transformers: "mlp.gate", whole components wherever they stand, with all below them;
              // "model.layers.*.mlp"; characters of regular expressions make one
  wildcards,  // ModelOpt: fnmatch's * ? [] on the whole name, with all below; without them as above
  exact,      // compressed-tensors: the module's whole name, or a class: expert matrices are "Linear"
};

class ModuleRules {
 public:
  ModuleRules() = default;
  /// Throws corrupt_file for a regular expression that makes no sense; `file_name` is for the message.
  ModuleRules(const std::vector<std::string>& rules, const std::string& file_name,
              Matching matching = Matching::subtrees);

  static ModuleRules everything();

  bool match(std::string_view module) const;

 private:
  /// A glob as an expression, which is tried where a name starts with what stands before its first wildcard.
  struct Glob {
    std::string literal;
    Pattern pattern;
  };
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  using Names = std::unordered_set<std::string, Hash, std::equal_to<>>;

  void add(const std::string& rule, const std::string& file_name, Matching matching);
  void add_glob(const std::string& glob, const std::string& file_name);

  bool everything_ = false;
  Names whole_;     // names of modules
  Names subtrees_;  // components, wherever they stand in a name
  std::vector<Glob> globs_;
  std::vector<Pattern> patterns_;
};

/// The name under which the other half of the ecosystem knows a module of a language model among others:
/// "language_model.model.x" for "model.language_model.x" and the other way round. Empty: no such module.
std::string other_spelling(std::string_view module);

/// Something for each of many named modules.
template <class Value>
class ModuleMap {
 public:
  /// `with_children`: a name also stands for the modules below it that have no nearer one.
  explicit ModuleMap(bool with_children = false) : with_children_(with_children) {}

  /// The last value for a name counts.
  void set(std::string name, Value value) { values_.insert_or_assign(std::move(name), std::move(value)); }

  std::optional<Value> find(std::string_view module) const {
    if (values_.empty()) return {};
    auto found = find_spelt(module);
    if (const std::string other = other_spelling(module); !found && !other.empty()) found = find_spelt(other);
    return found;
  }

 private:
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };

  std::optional<Value> find_spelt(std::string_view name) const {
    for (;;) {
      if (const auto at = values_.find(name); at != values_.end()) return at->second;
      const std::size_t dot = name.rfind('.');
      if (!with_children_ || dot == name.npos) return {};
      name = name.substr(0, dot);
    }
  }

  bool with_children_;
  std::unordered_map<std::string, Value, Hash, std::equal_to<>> values_;
};

}  // namespace sluice::checkpoint
