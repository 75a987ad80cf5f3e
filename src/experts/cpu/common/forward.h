// SPDX-License-Identifier: Apache-2.0
// The forward call of the CPU backends, over a table of kernels.
#pragma once

#include <cstddef>

#include "experts/backend.h"
#include "experts/cpu/common/kernel.h"

namespace sluice::cpu {

std::size_t workspace_bytes(const PackedExperts& packed, int tokens, int workers);
/// The same for tables with kernels for rows of bf16, and for those that read any row as terms of bf16.
std::size_t bf16_workspace_bytes(const PackedExperts& packed, int tokens, int workers);
std::size_t bf16_terms_workspace_bytes(const PackedExperts& packed, int tokens, int workers);
void forward(const KernelTable& table, const PackedExperts& packed, const Forward& call);

}  // namespace sluice::cpu
