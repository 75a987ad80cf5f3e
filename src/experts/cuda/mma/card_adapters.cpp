// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/mma/card_adapters.h"

#include <algorithm>

#include "experts/cuda/mma/lora_copy.h"

namespace sluice::cuda {
namespace {

/// The deltas of one of a layer's two sets of experts.
struct Part {
  std::span<const LoraAdapter* const> adapters;
  std::vector<LoraExpert> LoraAdapter::*experts;
  const ExpertsSpec& spec;

  std::size_t local_experts() const { return static_cast<std::size_t>(spec.local_experts); }
  std::size_t size() const { return adapters.size() * local_experts(); }
  /// Null where an adapter has nothing for these experts.
  const LoraExpert* expert(std::size_t index) const {
    const std::vector<LoraExpert>& all = adapters[index / local_experts()]->*experts;
    return all.empty() ? nullptr : &all[index % local_experts()];
  }
};

void count(const Part& part, Places& places) {
  places.take<CardLoraExpert>(part.size());
  for (std::size_t i = 0; i < part.size(); ++i)
    if (const LoraExpert* expert = part.expert(i)) cuda::count(*expert, places);
}

CardLora copy(const Part& part, Places& places, cudaStream_t stream) {
  auto* const table = places.take<CardLoraExpert>(part.size());
  std::vector<std::byte> dense(dense_bytes(part.spec));
  std::vector<CardLoraExpert> experts(part.size());
  for (std::size_t i = 0; i < part.size(); ++i)
    if (const LoraExpert* expert = part.expert(i))
      experts[i] = cuda::copy(*expert, {places, stream, dense.data()});
  check(cudaMemcpyAsync(table, experts.data(), experts.size() * sizeof(CardLoraExpert),
                        cudaMemcpyHostToDevice, stream),
        "copying adapters");
  check(cudaStreamSynchronize(stream), "copying adapters");
  return {.rank = part.spec.lora_rank,
          .experts = table,
          .adapters = static_cast<std::int32_t>(part.adapters.size()),
          .local_experts = part.spec.local_experts};
}

}  // namespace

CardAdapters::CardAdapters(const DeviceLayer& layer, std::span<const LoraAdapter* const> adapters,
                           const ExpertsSpec& routed, const ExpertsSpec* shared)
    : DeviceAdapters(layer) {
  std::vector<Part> parts{{adapters, &LoraAdapter::routed, routed}};
  if (shared != nullptr) parts.push_back({adapters, &LoraAdapter::shared, *shared});
  Places counted(nullptr);
  for (const Part& part : parts) count(part, counted);
  memory_ = allocate(std::max<std::size_t>(counted.end(), 256));
  bytes_ = static_cast<std::int64_t>(counted.end());
  Places places(memory_.get());
  routed_ = copy(parts.front(), places, cudaStreamPerThread);
  if (shared != nullptr) shared_ = copy(parts.back(), places, cudaStreamPerThread);
}

CardLora CardAdapters::in_call(CardLora lora, const std::int32_t* of_token) {
  lora.of_token = of_token;
  return lora;
}

}  // namespace sluice::cuda
