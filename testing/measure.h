// SPDX-License-Identifier: Apache-2.0
// Timing, with its context: what the machine could do at most, in the same seconds, beside what a layer took.
//
// Machines are shared and their clocks move, so everything is taken over many short windows, windows of the
// roof and of the layer in turn, and reported as best, tenth percentile and median. Nothing here asserts a
// time.
//
// Weights are cold: before every timed call random slices are read (and timed, as the roof) that are together
// twice the last-level cache, from a buffer of their own; and every call goes to freshly drawn experts.
// On a card several layers in its memory take turns instead (measure_card.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/device.h"
#include "sluice/executor.h"
#include "sluice/layer.h"
#include "sluice/spec.h"
#include "testing/draw_routing.h"

namespace sluice::testing {

/// Microseconds of many windows.
struct Times {
  double best_us = 0, p10_us = 0, median_us = 0, p90_us = 0;
  int windows = 0;
};

/// Of windows in any order; all zero when there is none.
Times summarise(std::vector<double> microseconds);

/// How long to go on: until `seconds` of timed calls, but at least `least` and at most `most` of them.
struct Budget {
  int warm_up = 2;
  int least = 15;
  int most = 200;
  double seconds = 1.0;
};

/// Times `call`, each time after an untimed `prepare`.
Times time_calls(const Budget& budget, const std::function<void()>& prepare,
                 const std::function<void()>& call);

/// Work in the times of windows, in thousands of millions a second. Each is of the window of that name: `p10`
/// is the rate of a window that nine in ten took longer than.
struct Rate {
  double median = 0, p10 = 0, best = 0;
};
Rate rate_of(const Times& times, double work);

/// What this machine reads and computes in the same seconds: medians of windows that take turns with the
/// layer's, because its time is a median too. Neighbours that slow down one slow down the other; comparing a
/// median with the best of the other would measure the neighbours.
struct Roof {
  double read_gbps = 0;         // 1e9 bytes a second, in random slices of an expert's size
  double gflops = 0;            // of the fastest exact arithmetic, multiply-adds counted twice, in registers
  std::string_view arithmetic;  // which that is: "f32_fma", "bf16_dot"
  Times read, compute;          // of the windows behind the two
  double read_bytes = 0, flops = 0;  // of one window
};

/// What the machine can do apart from the layer, each in many short windows that take turns. The names are
/// those of the JSON.
struct Ceilings {
  Rate slices_2m, slices_4k;  // GB/s in random slices of an expert's size, by the size of pages asked for
  Rate sequential;            // GB/s, a stretch a worker, huge pages
  double huge_pages = 0;      // the part of the first's buffer that the system has put into huge pages
  struct Arithmetic {
    std::string_view name;
    Rate gflops;  // of int8 too: multiply-adds counted twice
  };
  std::vector<Arithmetic> arithmetic = {};
};

/// Measures the roof a window at a time, on all workers of an executor.
class RoofMeter {
 public:
  /// `buffer_bytes` 0: as large as it takes to be cold, 512 MiB on most machines. Throws out_of_memory.
  explicit RoofMeter(Executor& executor, std::size_t buffer_bytes = 0);
  ~RoofMeter();
  RoofMeter(const RoofMeter&) = delete;
  RoofMeter& operator=(const RoofMeter&) = delete;

  /// Reads twice the last-level cache, which evicts what was there, and then multiplies for about a
  /// millisecond.
  void window();
  /// Of the windows so far.
  Roof roof() const;
  /// Forgets them.
  void restart();

  /// Of `windows` windows of each kind; a second buffer of the same size is there meanwhile.
  Ceilings ceilings(int windows);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// What a call is given beside its rows: a processor is timed from ids alone.
enum class BenchFrom : std::uint8_t { ids, logits };

/// A layer to be timed.
struct BenchRequest {
  LayerSpec layer;
  std::string shape;         // as it is to be called: "gpt-oss-20b", "layer 3 of ..."
  std::string backend = {};  // by name; empty: the plan's choice
  std::string device = {};   // "cpu", "cuda", "cuda:1", ... of this machine; empty: where the backend runs
  BenchFrom from = BenchFrom::ids;
  Popularity routing = Popularity::uniform;
  std::vector<int> tokens = {1, 4, 16, 64, 256};
  std::shared_ptr<Executor> executor;
  std::uint64_t seed = 1;
  Budget budget = {};
  std::size_t cold_bytes = 0;  // buffer_bytes of the RoofMeter
  int ceiling_windows = 60;    // of each ceiling: half a second in all
  Progress progress = {};      // of packing
  std::string cache = {};      // LayerOptions::cache
  std::function<void(const CacheReport&)> on_cache = {};
};

/// What a result on a card has beside the rest.
struct OnCard {
  std::string device, driver;            // "NVIDIA H200", "580.159.04"
  int sm_clock = 0, sm_clock_least = 0;  // MHz while it was timed: median and least; 0: not known
  BenchFrom from = BenchFrom::ids;
  Popularity routing = Popularity::uniform;
  double experts_hit = 0;           // mean of the calls
  int layers = 0, calls = 0;        // that take turns; that a graph holds
  double launches = 0, nodes = 0;   // of a call: kernels; all nodes of the graph
  std::string_view roof_from = {};  // where the roof's numbers are from
  double floor_here_us = 0;         // with the bandwidth that was read with in this run
  double share_of_floor_here = 0;
};

/// One token count. On a processor the routed experts alone are timed, with routing given; on a card all of
/// the layer.
struct BenchResult {
  std::string backend, shape, format;  // format "mxfp4", or "gate/up/down" where they differ
  std::string processor = {};          // as it calls itself
  std::string time = {};               // when: "2026-11-30T17:45:01Z"
  int tokens = 0;
  int threads = 0;
  double median_us = 0, p10_us = 0, p90_us = 0, best_us = 0;
  int windows = 0;
  std::int64_t bytes = 0;     // of the experts hit, by their formats' geometry; the mean of all windows
  double flops = 0;           // two a weight and slot
  double floor_us = 0;        // bytes and flops at the roof, whichever takes longer
  double share_of_floor = 0;  // floor_us / median_us
  // The same of the windows of that rank, of the roof and of the layer alike.
  double floor_p10_us = 0, share_of_floor_p10 = 0;
  double floor_best_us = 0, share_of_floor_best = 0;
  Roof roof = {};                                 // of windows in between those of the layer
  std::shared_ptr<const Ceilings> ceilings = {};  // of the whole run, before the first result
  std::optional<OnCard> card = {};
};

/// The device of this machine that a request is about. Reads neither its layer nor its tokens, so that what
/// is missing is said before weights are drawn. Throws device where there is no such card, or no code for
/// cards in this build, and invalid_argument for a device that is described but not here.
DeviceFacts bench_device(const BenchRequest& request);

/// Multiply-adds counted twice, for every matrix that a slot goes through.
double flops_of(const ExpertsSpec& spec, int tokens);

/// Now, as BenchResult::time has it.
std::string utc_now();

/// Plans and packs, drops `weights`, and times every token count; `each` hears of a result as soon as there
/// is one. Throws Unsupported when no backend fits, out_of_memory when the layer does not.
std::vector<BenchResult> bench_layer(const BenchRequest& request, LayerWeights weights,
                                     const std::function<void(const BenchResult&)>& each = {});

}  // namespace sluice::testing
