// SPDX-License-Identifier: Apache-2.0
// In which order the columns of integers are packed, and what of it a spec does not say.
#pragma once

#include <cstdint>
#include <vector>

#include "experts/cpu/common/layout.h"
#include "sluice/spec.h"

namespace sluice::cpu {

/// Group after group, in ascending order within each, groups padded to whole parts and the row to whole
/// steps.
struct ColumnOrder {
  std::vector<std::int32_t> columns;  // [steps * 32]: the column of the matrix, -1 for padding
  std::vector<std::int32_t> groups;   // [steps * parts]: whose scale it is; -1 where there are no columns
};

ColumnOrder order_of(const WeightMatrix& matrix, const IntegerLayout& layout);

}  // namespace sluice::cpu
