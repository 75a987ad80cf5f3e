// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/mma/packed.h"

#include <vector>

#include "experts/cuda/common/column_order.h"
#include "experts/cuda/common/repack.h"
#include "experts/cuda/mma/decode.h"
#include "experts/cuda/mma/warpgroup.h"

namespace sluice::cuda {

Packed::Packed(const Backend& packed_by, const ExpertsSpec& packed_spec, const ExpertLayout& packed_as,
               DeviceMemory weights)
    : PackedExperts(packed_by, packed_spec),
      layout(packed_as),
      one_launch(packed_by.can.uses.has(InstructionList::of<instruction::Tma>())),
      warpgroups(has_warpgroups(layout)),
      mid_terms(packed_by.can.accuracy == Accuracies::of<accuracy::Float32>() ? kMostTerms : 1),
      memory(std::move(weights)) {
  if (!one_launch) return;
  counters = allocate(kDecodeKernels * sizeof(DecodeCounters));
  check(cudaMemset(counters.get(), 0, kDecodeKernels * sizeof(DecodeCounters)), "zeroing counters");
}

Packed::~Packed() = default;

std::unique_ptr<PackedExperts> pack(const Backend& backend, const PackInput& input) {
  const DeviceScope scope(input.device);
  const ExpertLayout layout = expert_layout(input.spec, packed_columns(input.spec, input.experts));
  const std::int64_t total = layout.bytes * std::ssize(input.experts);
  auto packed =
      std::make_unique<Packed>(backend, input.spec, layout, allocate(static_cast<std::size_t>(total)));
  std::vector<std::byte> expert(static_cast<std::size_t>(layout.bytes));
  std::int64_t done = 0;
  for (const ExpertWeights& weights : input.experts) {
    repack(input.spec, layout, weights, expert.data(), input.executor);
    check(cudaMemcpy(packed->memory.get() + done, expert.data(), expert.size(), cudaMemcpyHostToDevice),
          "copying weights");
    done += layout.bytes;
    if (input.progress) input.progress(done, total);
  }
  // A copy of pageable memory may return before it has arrived, and calls come in streams that do not wait.
  check(cudaStreamSynchronize(nullptr), "copying weights");
  return packed;
}

}  // namespace sluice::cuda
