// SPDX-License-Identifier: Apache-2.0
// The bits of numbers, and numbers at any address. Files promise no alignment, so nothing is read through a
// cast pointer.
#pragma once

#include <cstddef>
#include <cstring>

#include "core/hd.h"

namespace sluice {

/// std::bit_cast that device code may call too.
template <class To, class From>
SLUICE_HD constexpr To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, from);
}

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

template <class T>
void store(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof(T));
}

}  // namespace sluice
