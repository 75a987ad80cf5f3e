// SPDX-License-Identifier: Apache-2.0
// Experts of one layer in different formats, sorted into sets that have one.
#include <algorithm>

#include "experts/backend.h"

namespace sluice {

const MatrixFormats& ExpertsSpec::formats_of(std::int32_t position) const {
  const auto at = std::ranges::lower_bound(others, position, {}, &OtherFormats::expert);
  return at != others.end() && at->expert == position ? at->formats : formats;
}

std::vector<FormatGroup> format_groups(const ExpertsSpec& spec) {
  std::vector<FormatGroup> groups{{.spec = spec, .experts = {}}};
  for (std::int32_t local = 0; local < spec.local_experts; ++local) {
    const MatrixFormats& formats = spec.formats_of(local);
    auto group =
        std::ranges::find_if(groups, [&](const FormatGroup& known) { return known.spec.formats == formats; });
    if (group == groups.end()) {
      group = groups.insert(groups.end(), {.spec = spec, .experts = {}});
      group->spec.formats = formats;
    }
    group->experts.push_back(local);
  }
  // A layer whose experts are all others has no group in `formats`; one without experts has no other.
  if (groups.size() > 1 && groups.front().experts.empty()) groups.erase(groups.begin());
  for (FormatGroup& group : groups) {
    group.spec.local_experts = static_cast<int>(group.experts.size());
    group.spec.others.clear();
  }
  return groups;
}

}  // namespace sluice
