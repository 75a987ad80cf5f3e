// SPDX-License-Identifier: Apache-2.0
// The ordered sum of expert parallelism.
#include <algorithm>
#include <string>

#include "core/error.h"

#include "sluice/routing.h"

namespace sluice {

void combine(const Routing& routing, std::span<const std::int32_t> row_of_slot, const float* rows, int hidden,
             float* output) {
  require(std::ssize(row_of_slot) == std::ptrdiff_t{routing.tokens} * routing.top_k,
          ErrorKind::invalid_argument, [&] {
            return ErrorInfo{.code = "bad_rows",
                             .what = "combine: " + std::to_string(row_of_slot.size()) + " rows for " +
                                     std::to_string(routing.tokens) + " tokens of " +
                                     std::to_string(routing.top_k),
                             .todo = "Give row_of_slot[tokens * top_k], -1 for slots that nobody computed"};
          });
  for (int token = 0; token < routing.tokens; ++token, output += hidden) {
    std::fill_n(output, hidden, 0.0f);
    for (int j = 0; j < routing.top_k; ++j) {
      const std::size_t slot = static_cast<std::size_t>(token) * static_cast<std::size_t>(routing.top_k) + j;
      if (row_of_slot[slot] < 0) continue;
      const float* row = rows + std::ptrdiff_t{row_of_slot[slot]} * hidden;
      const float weight = routing.weights == nullptr ? 1.0f : routing.weights[slot];
      for (int i = 0; i < hidden; ++i) output[i] += weight * row[i];
    }
  }
}

}  // namespace sluice
