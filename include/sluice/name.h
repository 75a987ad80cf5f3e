// SPDX-License-Identifier: Apache-2.0
// Names out of a closed list, and sets of them.
//
// A Name is the public half of a list: it can be parsed, printed and compared, and says nothing about the
// code behind it. The private half (src/core/choice.h) maps it to a type. The list itself stands in one place
// only.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace sluice {

/// One entry of the closed list that `Tag` identifies. There is no default: a name must be chosen.
template <class Tag>
class Name {
 public:
  constexpr explicit Name(std::uint8_t index) : index_(index) {}

  /// The whole list, in declaration order. Defined beside the list.
  static std::span<const std::string_view> all();

  /// The entry spelled `text`, or nothing.
  static std::optional<Name> parse(std::string_view text) {
    for (std::size_t i = 0; i < all().size(); ++i)
      if (all()[i] == text) return Name(static_cast<std::uint8_t>(i));
    return std::nullopt;
  }

  constexpr std::uint8_t index() const { return index_; }
  std::string_view str() const { return all()[index_]; }
  friend constexpr bool operator==(Name, Name) = default;

 private:
  std::uint8_t index_;
};

/// A set of names out of one list (at most 64). Empty unless something was added.
template <class Tag>
class NameSet {
 public:
  constexpr NameSet() = default;

  static NameSet all() {
    NameSet set;
    for (std::size_t i = 0; i < Name<Tag>::all().size(); ++i)
      set.add(Name<Tag>(static_cast<std::uint8_t>(i)));
    return set;
  }

  constexpr NameSet& add(Name<Tag> name) {
    bits_ |= std::uint64_t{1} << name.index();
    return *this;
  }
  constexpr bool has(Name<Tag> name) const { return (bits_ >> name.index() & 1) != 0; }
  constexpr NameSet minus(NameSet other) const { return NameSet(bits_ & ~other.bits_); }
  constexpr NameSet plus(NameSet other) const { return NameSet(bits_ | other.bits_); }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr int size() const { return std::popcount(bits_); }
  friend constexpr bool operator==(NameSet, NameSet) = default;

  /// Calls `visit(Name)` for every member, in list order.
  template <class Visit>
  constexpr void each(Visit&& visit) const {
    for (std::uint64_t rest = bits_; rest != 0; rest &= rest - 1)
      visit(Name<Tag>(static_cast<std::uint8_t>(std::countr_zero(rest))));
  }

  /// "mxfp4, nvfp4"; "nothing" when empty.
  std::string str() const {
    std::string text;
    each([&](Name<Tag> name) {
      if (!text.empty()) text += ", ";
      text += name.str();
    });
    return text.empty() ? "nothing" : text;
  }

 private:
  constexpr explicit NameSet(std::uint64_t bits) : bits_(bits) {}
  std::uint64_t bits_ = 0;
};

}  // namespace sluice
