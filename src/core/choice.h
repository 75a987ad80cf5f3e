// SPDX-License-Identifier: Apache-2.0
// The private half of a Name: a closed set is a list of types, and names, parsing, sets and static dispatch
// follow from it. Adding an entry edits the list and nothing else; there is no enum, string table or switch
// to keep in step.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <utility>

#include "sluice/name.h"

namespace sluice {

/// The types behind Name<Tag>. Each has `static constexpr std::string_view name`.
template <class Tag, class... Types>
struct List {
  static constexpr std::array<std::string_view, sizeof...(Types)> kNames{Types::name...};
  static_assert(sizeof...(Types) <= 64, "a NameSet holds 64");

  template <class T>
  static constexpr Name<Tag> of() {
    static_assert((std::is_same_v<T, Types> || ...), "not in this list");
    int index = 0;
    bool found = false;
    ((found = found || std::is_same_v<T, Types>, index += found ? 0 : 1), ...);
    return Name<Tag>(static_cast<std::uint8_t>(index));
  }

  template <class... Ts>
  static constexpr NameSet<Tag> set() {
    NameSet<Tag> names;
    (names.add(of<Ts>()), ...);
    return names;
  }

  static constexpr NameSet<Tag> everything() { return set<Types...>(); }

  /// Calls `f.template operator()<T>()` for the type that `name` stands for and returns what it returns. The
  /// first type's return type is everybody's.
  template <class F>
  static constexpr decltype(auto) visit(Name<Tag> name, F&& f) {
    return visit_from<Types...>(name.index(), f);
  }

 private:
  template <class T, class... Rest, class F>
  static constexpr decltype(auto) visit_from(std::size_t index, F& f) {
    if constexpr (sizeof...(Rest) == 0) {
      return f.template operator()<T>();
    } else {
      if (index == 0) return f.template operator()<T>();
      return visit_from<Rest...>(index - 1, f);
    }
  }
};

}  // namespace sluice
