// SPDX-License-Identifier: Apache-2.0
#include "experts/cpu/common/activate.h"

#include "activation/activation.h"

namespace sluice::cpu {
namespace {

template <class A>
void row(const ActivationRow& row, const ActivationParams& params) {
  for (int i = 0; i < row.count; ++i) {
    const float gate = A::gated ? row.gate[i] : 0.0f;
    row.out[i] = A::template apply<float>(gate, row.up[i], params);
  }
}

}  // namespace

Activate activate(Activation activation) {
  return Activations::visit(activation, []<class A>() -> Activate { return row<A>; });
}

}  // namespace sluice::cpu
