// SPDX-License-Identifier: Apache-2.0
// What the values of a layer span, kind of matrix by kind, and which layers are unlike the others.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "format/geometry.h"
#include "lint/findings.h"
#include "lint/usual.h"

namespace sluice::linting {
namespace {

double share(std::int64_t count, std::int64_t of) {
  return of == 0 ? 0 : static_cast<double>(count) / static_cast<double>(of);
}

MatrixRange range_of(int layer, Part part, const std::vector<const Subject*>& all) {
  const WeightMatrix& first = *all.front()->matrix;
  MatrixRange range{.layer = layer,
                    .matrix = std::string(name(part)),
                    .storage = storage_text(first.format, first.integers.grouping),
                    .matrices = static_cast<std::int64_t>(all.size()),
                    .smallest_scale = all.front()->facts.scales.smallest,
                    .smallest_second = first.second_scale,
                    .largest_second = first.second_scale};
  std::int64_t zeros = 0, top = 0, at_bottom = 0, at_top = 0, weighed = 0;
  for (const Subject* one : all) {
    const Facts& facts = one->facts;
    range.weights += facts.weights;
    zeros += facts.zeros;
    top += facts.top;
    range.scales += facts.scales.count;
    at_bottom += facts.scales.at_bottom;
    at_top += facts.scales.at_top;
    range.smallest_scale = std::min(range.smallest_scale, facts.scales.smallest);
    range.largest_scale = std::max(range.largest_scale, facts.scales.largest);
    range.smallest_second = std::min(range.smallest_second, one->matrix->second_scale);
    range.largest_second = std::max(range.largest_second, one->matrix->second_scale);
    if (facts.log2_count == 0 || facts.zero_points > 0) continue;
    range.magnitude += facts.magnitude(*one->matrix);
    ++weighed;
  }
  if (range.scales > 0) range.scale_type = std::string(name(first.scales.dtype));
  if (range.largest_scale == 0) range.smallest_scale = 0;  // none that is good
  range.zero_share = share(zeros, range.weights);
  range.top_share = share(top, range.weights);
  range.bottom_share = share(at_bottom, range.scales);
  range.top_scale_share = share(at_top, range.scales);
  range.magnitude = weighed == 0 ? 0 : range.magnitude / static_cast<double>(weighed);
  return range;
}

Finding unlike(const MatrixRange& range, double others) {
  return {.severity = Severity::warning,
          .code = "layer_unlike_others",
          .layer = range.layer,
          .matrix = range.matrix,
          .what = fmt::format("weights are 2^{:.1f} in the mean, of the other layers 2^{:.1f}",
                              range.magnitude, others),
          .todo = "Check this layer's scales: one applied twice, absent, or from another layer",
          .numbers = {{"log2", range.magnitude}, {"others_log2", others}}};
}

/// Gate, up and down of a trained layer are within a factor of a few of each other.
Finding far_apart(const MatrixRange& up, const MatrixRange& down) {
  return {.severity = Severity::warning,
          .code = "matrices_far_apart",
          .layer = up.layer,
          .matrix = down.matrix,
          .what = fmt::format("weights are 2^{:.1f} in the mean, of {} 2^{:.1f}", down.magnitude, up.matrix,
                              up.magnitude),
          .todo = "Check the scales of both: a second scale absent, or applied twice",
          .numbers = {{"log2", down.magnitude}, {"others_log2", up.magnitude}}};
}

}  // namespace

std::vector<MatrixRange> ranges_of(int layer, const std::vector<Subject>& subjects) {
  std::vector<MatrixRange> ranges;
  for (const Part part : kParts) {
    const auto all = of_part(subjects, part);
    if (!all.empty()) ranges.push_back(range_of(layer, part, all));
  }
  return ranges;
}

std::vector<Finding> judge_ranges(const std::vector<MatrixRange>& ranges) {
  std::vector<Finding> findings;
  for (const Part part : kParts) {
    std::vector<const MatrixRange*> all;
    std::vector<double> magnitudes;
    for (const MatrixRange& range : ranges)
      if (range.matrix == name(part) && range.magnitude != 0) {
        all.push_back(&range);
        magnitudes.push_back(range.magnitude);
      }
    if (all.size() < 4) continue;
    const Usual usual(magnitudes);
    for (const MatrixRange* range : all)
      if (usual.unlike(range->magnitude)) findings.push_back(unlike(*range, usual.middle));
  }
  constexpr double kApart = 8;  // binades: 256 times; down of trained models is up to 50 times smaller
  for (const MatrixRange& up : ranges)
    for (const MatrixRange& other : ranges)
      if (up.layer == other.layer && up.matrix == "up" &&
          (other.matrix == "down" || other.matrix == "gate") && up.magnitude != 0 && other.magnitude != 0 &&
          std::abs(up.magnitude - other.magnitude) > kApart)
        findings.push_back(far_apart(up, other));
  return findings;
}

}  // namespace sluice::linting
