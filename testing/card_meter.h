// SPDX-License-Identifier: Apache-2.0
// What measuring on a card takes of the CUDA runtime: memory, graphs, clocks, and what the card does at most.
// There is no CUDA in this header, so that the measuring itself is compiled, and tested, in every build.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "testing/measure.h"

namespace sluice::testing {

/// Freed with the last that points to it.
using CardBytes = std::shared_ptr<std::byte>;

/// Replays of a graph.
struct Replays {
  Times times;                           // of a whole replay
  int kernels = 0, nodes = 0;            // of the graph
  int sm_clock = 0, sm_clock_least = 0;  // MHz while it ran, median and least; 0: not known
};

class CardMeter {
 public:
  virtual ~CardMeter() = default;

  virtual std::string driver() const = 0;  // its version
  virtual std::size_t l2_bytes() const = 0;
  virtual CUstream_st* stream() const = 0;

  /// Poisoned: NaN as a float and nobody as an id.
  virtual CardBytes allocate(std::size_t bytes) const = 0;
  virtual void write(std::byte* card, std::span<const std::byte> host) const = 0;
  /// After everything in the stream.
  virtual void read(std::span<std::byte> host, const std::byte* card) const = 0;

  /// Runs what `enqueue` puts into the stream once, makes a graph of it, and replays that within the budget.
  virtual Replays replay(const std::function<void()>& enqueue, const Budget& budget) const = 0;

  /// GB/s of reading memory from end to end, in windows of a gigabyte and more where there is room.
  virtual Rate reads(int windows) const = 0;
  /// Gflop/s of bf16 products in registers, by the instruction that every card from SM80 up has (mma.sync).
  virtual Rate products(int windows) const = 0;
};

/// By the card's place in detect(kind), which becomes current in this thread. Null in a build without CUDA.
using OpenCard = std::unique_ptr<CardMeter> (*)(int card);
extern const OpenCard kOpenCard;

}  // namespace sluice::testing
