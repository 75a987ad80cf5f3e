// SPDX-License-Identifier: Apache-2.0
#include "activation/activation.h"

namespace sluice {

template <>
std::span<const std::string_view> Activation::all() {
  return Activations::kNames;
}

bool is_gated(Activation activation) {
  return Activations::visit(activation, []<class A>() { return A::gated; });
}

}  // namespace sluice
