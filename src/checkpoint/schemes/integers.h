// SPDX-License-Identifier: Apache-2.0
// Schemes of integers. Their numbers are a model's own, so they are made, not listed.
#pragma once

#include "checkpoint/schemes/scheme.h"

namespace sluice::checkpoint {

struct IntegerStorage {
  int bits = 4;
  int group = 0;           // columns; 0: the whole row
  bool symmetric = false;  // no zero points; where a file has some all the same they must say so
  bool act_order = false;  // the columns' groups are listed
  int zero_offset = 0;     // to be added to stored zero points
};

/// compressed-tensors: `.weight_packed` I32 [outputs, words of a row], `.weight_scale` [outputs, groups],
/// `.weight_zero_point` I32 [words of a column, groups], `.weight_g_idx` I32 [inputs], and `.weight_shape`.
/// Words are dense, or, before 2026-06-22, padded; their number tells which.
Scheme packed_integers(const IntegerStorage& storage);

/// GPTQ: `.qweight` I32 [inputs * bits / 32, outputs], `.qzeros` I32 [groups, outputs * bits / 32], `.scales`
/// [groups, outputs], `.g_idx` I32 [inputs]. A module with a `.weight` and no `.qweight` is plain: the
/// configuration does not list those.
Scheme gptq_integers(const IntegerStorage& storage);

/// AWQ in gemm order: `.qweight` I32 [inputs, outputs / 8], `.qzeros` I32 [groups, outputs / 8], `.scales`
/// [groups, outputs]. Plain modules as for GPTQ.
Scheme awq_integers(const IntegerStorage& storage);

}  // namespace sluice::checkpoint
