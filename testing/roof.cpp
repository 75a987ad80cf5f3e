// SPDX-License-Identifier: Apache-2.0
// The roof: reading in expert-sized slices, and multiply-adds in registers.
#include <atomic>

#include "core/bits.h"
#include "core/devices.h"
#include "testing/measure.h"
#include "testing/roof_kernels.h"
#include "testing/roof_memory.h"

namespace sluice::testing {
namespace {

constexpr double kComputeUs = 1e3;  // of a window

/// One kind of arithmetic on all workers.
class RoofArithmetic {
 public:
  /// Finds the rounds for a window of the wanted length.
  RoofArithmetic(Executor& executor, const Arithmetic& arithmetic)
      : executor_(executor), arithmetic_(arithmetic) {
    for (double us = compute(); us < kComputeUs / 2; us = compute()) rounds_ *= 2;
  }

  /// Microseconds of a window. Several tasks a worker, so that one that is held up does not hold up all.
  double compute() {
    const double begin = microseconds_now();
    parallel_for(executor_, tasks(), [&](int, int) {
      sink_.fetch_xor(bits_as<std::uint32_t>(arithmetic_.run(rounds_)), std::memory_order_relaxed);
    });
    return microseconds_now() - begin;
  }

  double flops() const { return 2.0 * arithmetic_.lanes * rounds_ * tasks(); }
  std::string_view name() const { return arithmetic_.name; }

 private:
  int tasks() const { return 4 * executor_.workers(); }

  Executor& executor_;
  Arithmetic arithmetic_;
  int rounds_ = 1000;  // of a task
  std::atomic<std::uint32_t> sink_{0};
};

/// A ceiling's windows.
struct Windows {
  std::vector<double> us = {};
  Rate rate(std::size_t bytes) const { return rate_of(summarise(us), static_cast<double>(bytes)); }
};

}  // namespace

const Arithmetic& RoofKernels::fastest_exact() const {
  const Arithmetic* fastest = &arithmetic.front();
  for (const Arithmetic& kind : arithmetic)
    if (kind.exact && kind.lanes > fastest->lanes) fastest = &kind;
  return *fastest;
}

struct RoofMeter::State {
  Executor& executor;
  RoofKernels kernels;
  RoofMemory memory;
  RoofArithmetic arithmetic;
  std::vector<double> read_us = {}, compute_us = {};
};

RoofMeter::RoofMeter(Executor& executor, std::size_t buffer_bytes) {
  const RoofKernels kernels = roof_kernels(detect().has);
  state_.reset(new State{.executor = executor,
                         .kernels = kernels,
                         .memory{executor, kernels.read, Pages::huge, buffer_bytes},
                         .arithmetic{executor, kernels.fastest_exact()}});
}

RoofMeter::~RoofMeter() = default;

void RoofMeter::window() {
  state_->compute_us.push_back(state_->arithmetic.compute());
  state_->read_us.push_back(state_->memory.read_slices());
}

Roof RoofMeter::roof() const {
  Roof roof{.arithmetic = state_->arithmetic.name(),
            .read = summarise(state_->read_us),
            .compute = summarise(state_->compute_us),
            .read_bytes = static_cast<double>(state_->memory.window_bytes()),
            .flops = state_->arithmetic.flops()};
  roof.read_gbps = rate_of(roof.read, roof.read_bytes).median;
  roof.gflops = rate_of(roof.compute, roof.flops).median;
  return roof;
}

void RoofMeter::restart() {
  state_->read_us.clear();
  state_->compute_us.clear();
}

Ceilings RoofMeter::ceilings(int windows) {
  RoofMemory& huge = state_->memory;
  RoofMemory small(state_->executor, state_->kernels.read, Pages::small, huge.bytes());
  std::vector<std::unique_ptr<RoofArithmetic>> kinds;
  for (const Arithmetic& kind : state_->kernels.arithmetic)
    kinds.push_back(std::make_unique<RoofArithmetic>(state_->executor, kind));

  Windows slices_2m, slices_4k, sequential;
  std::vector<Windows> computed(kinds.size());
  for (int i = 0; i < windows; ++i) {
    slices_2m.us.push_back(huge.read_slices());
    slices_4k.us.push_back(small.read_slices());
    sequential.us.push_back(huge.read_sequentially());
    for (std::size_t k = 0; k < kinds.size(); ++k) computed[k].us.push_back(kinds[k]->compute());
  }

  Ceilings ceilings{.slices_2m = slices_2m.rate(huge.window_bytes()),
                    .slices_4k = slices_4k.rate(small.window_bytes()),
                    .sequential = sequential.rate(huge.window_bytes()),
                    .huge_pages = huge.huge_part()};
  for (std::size_t k = 0; k < kinds.size(); ++k)
    ceilings.arithmetic.push_back({kinds[k]->name(), rate_of(summarise(computed[k].us), kinds[k]->flops())});
  return ceilings;
}

}  // namespace sluice::testing
