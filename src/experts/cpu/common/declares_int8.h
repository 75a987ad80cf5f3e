// SPDX-License-Identifier: Apache-2.0
// What CPU backends can do that round inputs and the intermediate to int8 (int8.h): a part of what every CPU
// backend can. Every format they take is rounded; only rows that int8 cannot hold (to_int8.h) are float32,
// which depends on the row alone.
#pragma once

#include "experts/cpu/common/declares.h"

namespace sluice::cpu {

/// Those whose codes are small integers. Others have no product with int8 that keeps them exact.
inline constexpr NameSet<struct FormatTag> kInt8Weights =
    Formats::set<format::Mxfp4, format::Nvfp4, format::Int2, format::Int3, format::Int4, format::Int5,
                 format::Int6, format::Int7, format::Int8, format::Q4_0, format::Q8_0, format::Q4K,
                 format::Q5K, format::Q6K>();

/// Other groups and act-order have an order of columns of their own, in which 32 neighbours are others than
/// in the row. Experts in plain numbers, which mixed ones are, have no int8.
inline constexpr IntegerGroups kInt8Groups{.multiple = kDigitColumns / 2, .whole_row = true};
inline constexpr FeatureSet kInt8Features =
    kFeatures.minus(Features::set<feature::ActOrder, feature::MixedExperts>());

template <class Of>
constexpr Backend declare_int8() {
  Backend backend = declare<Of>();
  backend.can.weights = kInt8Weights;
  backend.can.features = kInt8Features;
  backend.can.integer_groups = kInt8Groups;
  backend.can.accuracy = Accuracies::of<accuracy::Int8Activations>();
  backend.only_by_name = true;
  return backend;
}

}  // namespace sluice::cpu
