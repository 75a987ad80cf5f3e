// SPDX-License-Identifier: Apache-2.0
// The adapters of one part of a call from the processor, on their way to the card: only those of the experts
// that its tokens name, each once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "experts/backend.h"
#include "experts/cuda/mma/lora.h"

namespace sluice::cuda {

class LoraPart {
 public:
  /// Of the processor's memory.
  static std::size_t workspace_bytes(const ExpertsSpec& spec, std::size_t slots);
  /// Of a call without adapters.
  LoraPart() = default;
  /// Of neighbouring tokens. Their lists are in `workspace`, which must stay while they are used.
  LoraPart(const ExpertsSpec& spec, const Forward& forward, RowRange tokens, std::byte* workspace);

  /// The largest rank that deltas may have; 0: no token has any.
  int rank() const { return rank_; }
  /// Of the card's memory, for the lists and the matrices.
  std::size_t card_bytes() const;
  /// Starts copying. What it reads must stay until the stream has come past that.
  CardLora copy(std::byte* memory, cudaStream_t stream) const;

 private:
  /// A slot's deltas; after sorting the first `named_` are one for each expert and adapter.
  struct Named {
    const LoraExpert* deltas;
    std::int32_t slot;
  };

  void list(const ExpertsSpec& spec, const Forward& forward, RowRange tokens);

  int rank_ = 0;
  std::size_t slots_ = 0, named_ = 0;
  Named* by_expert_ = nullptr;         // [slots]
  std::int32_t* of_slot_ = nullptr;    // [slots]
  CardLoraExpert* experts_ = nullptr;  // [slots]
  std::byte* dense_ = nullptr;         // a matrix
};

}  // namespace sluice::cuda
