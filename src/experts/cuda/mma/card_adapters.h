// SPDX-License-Identifier: Apache-2.0
// Adapters that stay in a card's memory, for calls on its tensors.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "experts/cuda/mma/lora.h"
#include "experts/cuda/mma/packed.h"
#include "sluice/device_call.h"

namespace sluice::cuda {

class CardAdapters : public DeviceAdapters {
 public:
  /// Copies to the current card, which is the layer's, and waits. `shared` is null where the layer has none.
  CardAdapters(const DeviceLayer& layer, std::span<const LoraAdapter* const> adapters,
               const ExpertsSpec& routed, const ExpertsSpec* shared);
  std::int64_t bytes() const override { return bytes_; }

  /// Of routed experts, or of the shared one, in a call whose rows have these adapters.
  CardLora routed(const std::int32_t* of_token) const { return in_call(routed_, of_token); }
  CardLora shared(const std::int32_t* of_token) const { return in_call(shared_, of_token); }

 private:
  static CardLora in_call(CardLora lora, const std::int32_t* of_token);

  DeviceMemory memory_;
  std::int64_t bytes_ = 0;
  CardLora routed_ = {}, shared_ = {};
};

}  // namespace sluice::cuda
