// SPDX-License-Identifier: Apache-2.0
// Canonical weights into the layout of layout.h, one expert at a time.
#pragma once

#include <cstddef>

#include "experts/cuda/common/layout.h"
#include "sluice/executor.h"
#include "sluice/spec.h"

namespace sluice::cuda {

/// Writes all of [memory, memory + layout.bytes). Values times scales come out exactly: a row's powers of two
/// are taken relative to its largest, which goes into the row's factor. Throws unsupported for a row whose
/// powers of two lie too far apart for that (124 binades or more) and for negative or infinite scales where
/// the format has none. The layout is that of packed_columns for this expert and those beside it.
void repack(const ExpertsSpec& spec, const ExpertLayout& layout, const ExpertWeights& expert,
            std::byte* memory, Executor& executor);

}  // namespace sluice::cuda
