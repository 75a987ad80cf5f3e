// SPDX-License-Identifier: Apache-2.0
// Layers made out of what a backend declares. Nothing here names a backend, a format, an activation or a
// feature that is not in the lists, so a new entry is tested on the day it is declared.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "activation/activation.h"
#include "experts/backend.h"
#include "format/formats.h"
#include "sluice/spec.h"

namespace sluice::conformance {

/// A layer to build and what to call it in a failure.
struct Case {
  LayerSpec spec;
  std::string name = {};
  std::vector<std::int32_t> expert_map = {};
};

struct Shape {
  int hidden = 96, intermediate = 160;
  int columns = 32;  // of integers that share a scale
};

/// The features that make a difference with this activation, out of `features`. No limit for an activation
/// that reads none.
FeatureSet applicable(FeatureSet features, Activation activation);
/// The same with this format: zero points and act-order are for integers.
FeatureSet applicable(FeatureSet features, Format format);

/// A row of the format is a multiple of so many columns.
int column_unit(Format format);

/// A layer of 6 experts, top 2, in `format`, that needs exactly `features` (which must be applicable). With
/// mixed_formats down is in `other`, with mixed_gate_up the gate, with mixed_experts some experts are plain
/// numbers. An expert map keeps 4 of the 6 here.
/// Sizes are rounded up to what both formats' rows are multiples of.
Case make_case(Format format, Format other, Activation activation, FeatureSet features, Shape shape = {});

/// Every declared format x activation, without any feature and with all that apply; and every declared
/// feature by itself with every activation, over the formats in turn. Integers also in every group that is
/// declared, with and without zero points and act-order.
std::vector<Case> declared_cases(const Capability& can);

/// All members of a set.
template <class Tag>
std::vector<Name<Tag>> members(NameSet<Tag> set) {
  std::vector<Name<Tag>> all;
  set.each([&](Name<Tag> name) { all.push_back(name); });
  return all;
}

/// "cpu_avx2": the suffix of a test that has a backend as its parameter.
inline std::string test_name(const ::testing::TestParamInfo<const Backend*>& info) {
  std::string name(info.param->name);
  for (char& letter : name)
    if (letter == '.') letter = '_';
  return name;
}

}  // namespace sluice::conformance
