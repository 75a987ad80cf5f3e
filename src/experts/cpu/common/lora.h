// SPDX-License-Identifier: Apache-2.0
// The two small products of a low-rank adapter, in float32. Each sum has an order of its own, so it depends
// neither on the batch nor on the threads, and the library's baseline instructions do: at rank 16 they are a
// hundredth of the experts' multiply-adds.
#pragma once

#include "sluice/lora.h"

namespace sluice::cpu {

/// Rows [first, first + count) of a weight.
struct RowRange {
  int first, count;
};

/// low[r] = scale * sum of A[r][k] x[k], for every rank; nothing for an empty delta.
void project(const LoraDelta& delta, const float* x, float* low);

/// to[i] += sum of B[rows.first + i][r] low[r] in ascending order; nothing for an empty delta.
void add_delta(const LoraDelta& delta, const float* low, RowRange rows, float* to);

}  // namespace sluice::cpu
