// SPDX-License-Identifier: Apache-2.0
// Strips of integers, whose columns are packed in an order (column_order.h).
#pragma once

#include <cstddef>

#include "experts/cuda/common/column_order.h"
#include "experts/cuda/common/strip.h"

namespace sluice::cuda {

/// Writes the blocks of a strip. `orders` are those of rows 0 to 7 and of rows 8 to 15.
void write_integer_strip(const StripsLayout& layout, const Strip& strip,
                         const ColumnOrder* const (&orders)[2], std::byte* blocks);

}  // namespace sluice::cuda
