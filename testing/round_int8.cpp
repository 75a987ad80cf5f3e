// SPDX-License-Identifier: Apache-2.0
#include "testing/round_int8.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "sluice/plan.h"
#include "testing/closeness.h"
#include "testing/rounding.h"

namespace sluice::testing {
namespace {

constexpr int kShare = 32;  // columns that share a step
constexpr float kMost = 127;
/// What a backend within the gates may be off by, in reaches.
constexpr double kOff = reference::kRoundedPart;
static_assert(kOff == Closeness::kMostUnits * kFloat32Unit);

/// Some of the columns that share a step.
struct Share {
  reference::Row row;
  int count;
  double *rounded, *slack;
};

float largest_of(const Share& share) {
  float largest = 0;
  for (int i = 0; i < share.count; ++i)
    largest = std::max(largest, std::abs(static_cast<float>(share.row.x[i])));
  return largest;
}

/// Steps that a value y, which is `off` by at most that, may be rounded to beside the nearest.
double other_steps(double y, double off) {
  const double to_middle = 0.5 - std::abs(y - std::nearbyint(y));
  return to_middle > off ? 0 : 1 + std::floor(off - to_middle);
}

void round_share(const Share& share, float largest) {
  const float step = largest / kMost, inverse = kMost / largest;
  const double* const reach = share.row.reach;
  // All that share a step are off together by as much as the largest may be.
  const double together = reach == nullptr ? 0 : *std::max_element(reach, reach + share.count) / largest;
  for (int i = 0; i < share.count; ++i) {
    const float y = static_cast<float>(share.row.x[i]) * inverse;
    share.rounded[i] = double{std::nearbyint(y)} * step;
    share.slack[i] = 0;
    if (reach == nullptr) continue;
    const double magnitude = std::abs(double{y});
    // y itself is rounded twice.
    const double off = kOff * (reach[i] / step + magnitude * together) + 2 * kFloat32Unit * magnitude;
    share.slack[i] =
        std::abs(share.rounded[i]) * together + other_steps(double{y}, off) * double{step} / kOff;
  }
}

}  // namespace

bool round_to_int8(const reference::Row& row, int columns, double* rounded, double* slack) {
  for (int i = 0; i < columns; ++i)
    if (!(std::abs(row.x[i]) <= 0x1p110)) return false;  // NaN, too
  for (int done = 0; done < columns; done += kShare) {
    const Share share{.row = {row.x + done, row.reach == nullptr ? nullptr : row.reach + done, nullptr},
                      .count = std::min(kShare, columns - done),
                      .rounded = rounded + done,
                      .slack = slack + done};
    const float largest = largest_of(share);
    if (largest == 0) {
      std::fill_n(share.rounded, share.count, 0.0);
      for (int i = 0; i < share.count; ++i)
        share.slack[i] = share.row.reach == nullptr ? 0 : share.row.reach[i];
      continue;
    }
    if (largest < 0x1p-100f) return false;
    round_share(share, largest);
  }
  return true;
}

Rounding rounding_of(std::string_view backend) {
  for (const BackendInfo& info : backends_info())
    if (info.name == backend && info.accuracy == "int8_activations") return Rounding::int8_activations;
  return Rounding::none;
}

}  // namespace sluice::testing
