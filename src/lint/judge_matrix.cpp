// SPDX-License-Identifier: Apache-2.0
// What can be said of one matrix.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "format/e2m1.h"
#include "format/e4m3.h"
#include "format/formats.h"
#include "lint/findings.h"

namespace sluice::linting {
namespace {

constexpr const char* kQuantisedWrongly =
    "Fetch the file again; if it is as published, the model was quantised wrongly";
constexpr std::int64_t kEnough = 1024;  // weights below which the absence of a code says nothing

class Judge {
 public:
  Judge(const Subject& subject, LayerFindings& findings)
      : matrix_(*subject.matrix), facts_(subject.facts), subject_(subject), findings_(findings) {}

  void scales() const;
  void scale_ends() const;
  void second_scale(const Setting& setting) const;
  void values() const;
  void codes() const;
  void integer_parts() const;

 private:
  Issue issue(Severity severity, std::string_view code) const {
    return {.severity = severity,
            .code = code,
            .matrix = name(subject_.part),
            .expert = subject_.expert,
            .at = matrix_.codes};
  }
  double share(std::int64_t count, std::int64_t of) const {
    return of == 0 ? 0 : static_cast<double>(count) / static_cast<double>(of);
  }
  int bits() const { return geometry(matrix_.format).code_bits; }
  void unused_codes() const;
  void saturated() const;

  const WeightMatrix& matrix_;
  const Facts& facts_;
  const Subject& subject_;
  LayerFindings& findings_;
};

std::string words_of(format::ScaleFault fault, DType dtype) {
  switch (fault) {
    case format::ScaleFault::zero:
      return "scales are zero";
    case format::ScaleFault::negative:
      return "scales are negative";
    case format::ScaleFault::infinite:
      return "scales are infinite";
    case format::ScaleFault::nan:
      break;
  }
  return dtype == DType::f8_e8m0 ? "scales are byte 255, the NaN of E8M0" : "scales are NaN";
}

void Judge::scales() const {
  const ScaleFacts& scales = facts_.scales;
  for (std::size_t i = 0; i < scales.faults.size(); ++i) {
    if (scales.faults[i] == 0) continue;
    const auto fault = static_cast<format::ScaleFault>(i);
    const DType dtype = matrix_.scales.dtype == DType::u8 ? DType::f8_e8m0 : matrix_.scales.dtype;
    Issue found = issue(Severity::error, format::fault_code(fault, dtype));
    found.count = scales.faults[i];
    found.of = scales.count;
    found.text = fmt::format("{}, the first at row {}, group {} of the scales", words_of(fault, dtype),
                             scales.first_row[i], scales.first_col[i]);
    found.todo = fault == format::ScaleFault::zero
                     ? "Write 1 for a group of zeros, and keep other scales at the smallest number or above"
                     : kQuantisedWrongly;
    found.at = matrix_.scales.data;
    findings_.add(std::move(found));
  }
}

/// A scale at the end of its type was most often cut off there.
void Judge::scale_ends() const {
  const ScaleFacts& scales = facts_.scales;
  if (bits() == 0 || scales.count == 0) return;
  const bool e8m0 = matrix_.scales.dtype == DType::f8_e8m0 || matrix_.scales.dtype == DType::u8;
  // E8M0: 2^127 is never right, 2^-127 is what the OCP rule gives groups of zeros. E4M3 of NVFP4: the
  // largest group of a matrix has 448 by its recipe, and hardly any other.
  const double bottom = share(scales.at_bottom, scales.count), top = share(scales.at_top, scales.count);
  const bool low = bottom > (e8m0 ? 0.01 : 0.05) && !facts_.all_zero();
  const bool high = e8m0 ? scales.at_top > 0 : top > 0.05 && scales.at_top > 4;
  if (!low && !high) return;
  Issue found = issue(Severity::warning, "scale_at_format_end");
  found.count = scales.at_bottom + scales.at_top;
  found.of = scales.count;
  found.text = fmt::format("scales lie at the ends of {}: {} are {}, {} are {}", e8m0 ? "E8M0" : "E4M3",
                           scales.at_bottom, e8m0 ? "2^-127" : "2^-9", scales.at_top, e8m0 ? "2^127" : "448");
  found.todo = "Check that scales were not cut off: the second scale of NVFP4 is amax / 2688 of this matrix";
  found.at = matrix_.scales.data;
  findings_.add(std::move(found));
}

/// As factors, second scales are amax / 2688; weights of 2688 and more do not occur. A second scale of one is
/// what stands where none was read.
void Judge::second_scale(const Setting& setting) const {
  if (!geometry(matrix_.format).second_scale || facts_.all_zero() || matrix_.second_scale < 1) return;
  const double second = static_cast<double>(matrix_.second_scale),
               reach = second * static_cast<double>(facts_.scales.largest) * 6;
  // Beyond the range of float16 there is no telling a weight from noise.
  Issue found = issue(reach > 65504 ? Severity::error : Severity::warning, "second_scale_above_one");
  found.text = fmt::format(
      "the second scale acts as a factor of {:.4g}, so weights reach {:.4g}; it is amax / 2688, far below "
      "one",
      second, reach);
  found.todo = fmt::format(
      "The scheme here is \"{}\". ModelOpt's weight_scale_2 multiplies and is below one, compressed-tensors' "
      "weight_global_scale divides and is above one: store the reciprocal, or name the other scheme",
      setting.quantisation);
  found.numbers = {{"second_scale", second}, {"reach", reach}};
  findings_.add(std::move(found));
}

void Judge::values() const {
  if (facts_.not_finite > 0) {
    Issue found = issue(Severity::error, "weight_not_finite");
    found.count = facts_.not_finite;
    found.of = facts_.weights;
    found.text = "weights are NaN or infinite";
    found.todo = kQuantisedWrongly;
    findings_.add(std::move(found));
  }
  if (facts_.all_zero() || (facts_.weights >= kEnough && facts_.kind != Kind::plain && facts_.one_code())) {
    Issue found = issue(Severity::warning, facts_.all_zero() ? "all_zero" : "one_code");
    found.text = facts_.all_zero() ? "all weights are zero" : "all codes are the same";
    found.todo = "Check that the tensor was filled before it was saved";
    findings_.add(std::move(found));
  }
  // A bf16 or f32 below 2^-126 is noise or padding gone wrong; float16 starts losing bits at 6e-5 already.
  const double denormal = share(facts_.denormal, facts_.weights);
  const bool half = matrix_.format == Formats::of<format::F16>();
  if (denormal > (half ? 0.01 : 0)) {
    Issue found = issue(denormal > (half ? 0.1 : 0.01) ? Severity::warning : Severity::note, "denormal");
    found.count = facts_.denormal;
    found.of = facts_.weights;
    found.text =
        fmt::format("weights are denormal in {}: some devices take them for zero", matrix_.format.str());
    found.todo = half ? "Store BF16 where weights are that small" : "Round such weights to zero";
    findings_.add(std::move(found));
  }
}

/// The largest code in use, as a share of the largest there is, and its number in words.
struct Reach {
  double largest = 0, possible = 1;
};

Reach reach_of(const Facts& facts, int bits) {
  Reach reach;
  for (std::size_t code = 0; code < 256; ++code) {
    if (facts.codes[code] == 0) continue;
    double value = 0;
    if (facts.kind == Kind::e2m1) value = std::abs(static_cast<double>(format::kE2m1[code]));
    if (facts.kind == Kind::e4m3)
      value = std::abs(static_cast<double>(format::e4m3_to_float(static_cast<std::uint8_t>(code))));
    if (facts.kind == Kind::integers) value = std::abs(static_cast<double>(code) - (1 << (bits - 1)));
    if (!std::isnan(value)) reach.largest = std::max(reach.largest, value);
  }
  reach.possible = facts.kind == Kind::e2m1   ? 6
                   : facts.kind == Kind::e4m3 ? 448
                                              : static_cast<double>(1 << (bits - 1));
  return reach;
}

/// Every recipe puts the largest weight of a group near the largest code: within a factor of two by powers of
/// two, next to it otherwise. A matrix that never gets there has scales that are too large.
void Judge::unused_codes() const {
  const Reach reach = reach_of(facts_, bits());
  const double limit = facts_.kind == Kind::e2m1 ? 1 : facts_.kind == Kind::e4m3 ? 0.28 : 0.5;
  if (reach.largest >= limit * reach.possible) return;
  Issue found = issue(Severity::warning, "top_codes_unused");
  found.text = fmt::format("the largest code in use is {}, of {}: part of the format's range is wasted",
                           reach.largest, reach.possible);
  found.todo = "Check that scales were computed from the largest weight of their own group";
  found.numbers = {{"largest", reach.largest}, {"possible", reach.possible}};
  findings_.add(std::move(found));
}

/// One weight of a group is at the end by construction, 1 of 16 to 128; many are when scales are too small.
void Judge::saturated() const {
  const double limit = facts_.kind == Kind::e4m3 ? 0.1 : 0.35;
  if (share(facts_.top, facts_.weights) <= limit) return;
  Issue found = issue(Severity::warning, "many_saturated");
  found.count = facts_.top;
  found.of = facts_.weights;
  found.text = "codes are the largest that there are: weights were cut off";
  found.todo = "Check that scales were computed from the largest weight of their own group";
  findings_.add(std::move(found));
}

void Judge::codes() const {
  const bool coded = facts_.kind == Kind::e2m1 || facts_.kind == Kind::e4m3 ||
                     (facts_.kind == Kind::integers && bits() >= 4 && facts_.zero_points == 0);
  if (!coded || facts_.weights < kEnough || facts_.all_zero() || facts_.one_code()) return;
  unused_codes();
  saturated();
}

void Judge::integer_parts() const {
  if (facts_.wrapped_zero_points > 0) {
    Issue found = issue(Severity::warning, "zero_point_wraps");
    found.count = facts_.wrapped_zero_points;
    found.of = facts_.zero_points;
    found.text = fmt::format("stored zero points are {}, and one more does not fit {} bits: taken as 0 here",
                             (1 << bits()) - 1, bits());
    found.todo = "Engines disagree about this value; store checkpoint_format gptq_v2";
    found.at = matrix_.integers.zeros;
    findings_.add(std::move(found));
  }
  if (facts_.zero_points > 1 && facts_.smallest_zero_point == facts_.largest_zero_point) {
    Issue found = issue(Severity::note, "zero_points_same");
    found.text = fmt::format(
        "all zero points are {}{}", facts_.smallest_zero_point,
        facts_.smallest_zero_point == 1u << (bits() - 1) ? ", the middle: the matrix is symmetric" : "");
    found.todo = "Stored as symmetric, the model would be smaller";
    found.at = matrix_.integers.zeros;
    found.numbers = {{"zero_point", static_cast<double>(facts_.smallest_zero_point)}};
    findings_.add(std::move(found));
  }
  if (matrix_.integers.column_groups == nullptr || facts_.bad_groups) return;
  const std::int64_t full = matrix_.integers.grouping.columns, rest = matrix_.cols % full;
  if (facts_.largest_group <= full && facts_.smallest_group >= (rest == 0 ? full : rest)) return;
  Issue found = issue(Severity::warning, "groups_unbalanced");
  found.text = fmt::format("groups have {} to {} columns, the group size is {}", facts_.smallest_group,
                           facts_.largest_group, full);
  found.todo = "Check g_idx: every group has the same number of columns by GPTQ's rule";
  found.at = matrix_.integers.column_groups;
  found.numbers = {{"smallest", static_cast<double>(facts_.smallest_group)},
                   {"largest", static_cast<double>(facts_.largest_group)}};
  findings_.add(std::move(found));
}

}  // namespace

void judge_matrix(const Subject& subject, const Setting& setting, LayerFindings& findings) {
  const Judge judge(subject, findings);
  judge.scales();
  judge.scale_ends();
  judge.second_scale(setting);
  judge.values();
  judge.codes();
  if (subject.facts.kind == Kind::integers) judge.integer_parts();
}

}  // namespace sluice::linting
