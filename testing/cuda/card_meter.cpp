// SPDX-License-Identifier: Apache-2.0
// CardMeter with the CUDA runtime. Every time is between two events in the meter's own stream.
#include "testing/card_meter.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>

#include "experts/cuda/mma/runtime.h"
#include "testing/cuda/ceilings.h"
#include "testing/cuda/clocks.h"

namespace sluice::testing {
namespace {

using cuda::check;

constexpr std::size_t kMostRead = std::size_t{4} << 30;
constexpr int kRounds = 4096;    // of products: half a millisecond
constexpr int kClockEvery = 16;  // windows, of short ones: asking takes longer than most of them
constexpr double kLong = 2000;   // microseconds
constexpr int kPoison = 0xFF, kReadable = 0x5A;

class Event {
 public:
  Event() { check(cudaEventCreate(&event_), "making an event"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

class Graph {
 public:
  Graph(cudaStream_t stream, const std::function<void()>& enqueue) {
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capturing");
    try {
      enqueue();
    } catch (...) {
      cudaGraph_t part = nullptr;  // a stream that goes on capturing would hide the cause
      if (cudaStreamEndCapture(stream, &part) == cudaSuccess) cudaGraphDestroy(part);
      throw;
    }
    check(cudaStreamEndCapture(stream, &graph_), "capturing");
    check(cudaGraphInstantiate(&executable_, graph_, 0), "making a graph");
  }
  ~Graph() {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch(cudaStream_t stream) const { check(cudaGraphLaunch(executable_, stream), "starting a graph"); }

  void count(Replays& into) const {
    std::size_t nodes = 0;
    check(cudaGraphGetNodes(graph_, nullptr, &nodes), "counting launches");
    std::vector<cudaGraphNode_t> all(nodes);
    check(cudaGraphGetNodes(graph_, all.data(), &nodes), "counting launches");
    into.nodes = static_cast<int>(nodes);
    for (const cudaGraphNode_t node : all) {
      cudaGraphNodeType type{};
      check(cudaGraphNodeGetType(node, &type), "counting launches");
      if (type == cudaGraphNodeTypeKernel) ++into.kernels;
    }
  }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

std::string bus_id(int card) {
  std::array<char, 32> text{};
  check(cudaDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), card), "asking for the device");
  return text.data();
}

class Meter : public CardMeter {
 public:
  explicit Meter(int card) : clocks_(bus_id(card)) {
    check(cudaSetDevice(card), "choosing the device");
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
    l2_bytes_ = attribute(cudaDevAttrL2CacheSize, card);
    multiprocessors_ = attribute(cudaDevAttrMultiProcessorCount, card);
  }
  ~Meter() override { cudaStreamDestroy(stream_); }
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;

  std::string driver() const override { return clocks_.driver(); }
  std::size_t l2_bytes() const override { return static_cast<std::size_t>(l2_bytes_); }
  CUstream_st* stream() const override { return stream_; }

  CardBytes allocate(std::size_t bytes) const override { return filled(bytes, kPoison); }
  void write(std::byte* card, std::span<const std::byte> host) const override {
    check(cudaMemcpyAsync(card, host.data(), host.size(), cudaMemcpyHostToDevice, stream_), "copying");
    wait();
  }
  void read(std::span<std::byte> host, const std::byte* card) const override {
    check(cudaMemcpyAsync(host.data(), card, host.size(), cudaMemcpyDeviceToHost, stream_), "copying");
    wait();
  }

  Replays replay(const std::function<void()>& enqueue, const Budget& budget) const override;
  Rate reads(int windows) const override;
  Rate products(int windows) const override;

 private:
  static int attribute(cudaDeviceAttr which, int card) {
    int value = 0;
    check(cudaDeviceGetAttribute(&value, which, card), "asking for the device");
    return value;
  }
  CardBytes filled(std::size_t bytes, int value) const {
    CardBytes memory = cuda::allocate(std::max<std::size_t>(bytes, 1));
    check(cudaMemsetAsync(memory.get(), value, bytes, stream_), "poisoning");
    wait();
    return memory;
  }
  void wait() const { check(cudaStreamSynchronize(stream_), "waiting for the card"); }
  /// Microseconds on the card of what `start` puts into the stream; `meanwhile` runs on the host.
  double time(const std::function<void()>& start, const std::function<void()>& meanwhile = {}) const;
  Rate rate(int windows, double work, const std::function<void()>& start) const;

  const Clocks clocks_;
  cudaStream_t stream_ = nullptr;
  int l2_bytes_ = 0, multiprocessors_ = 0;
  Event before_, after_;
};

double Meter::time(const std::function<void()>& start, const std::function<void()>& meanwhile) const {
  check(cudaEventRecord(before_.get(), stream_), "timing");
  start();
  check(cudaEventRecord(after_.get(), stream_), "timing");
  if (meanwhile) meanwhile();
  check(cudaEventSynchronize(after_.get()), "waiting for the card");
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, before_.get(), after_.get()), "timing");
  return 1e3 * static_cast<double>(milliseconds);
}

Replays Meter::replay(const std::function<void()>& enqueue, const Budget& budget) const {
  enqueue();
  wait();
  const Graph graph(stream_, enqueue);
  Replays replays;
  graph.count(replays);
  const auto launch = [&] { graph.launch(stream_); };
  for (int i = 0; i < budget.warm_up; ++i) time(launch);
  std::vector<double> windows;
  std::vector<int> clocks;
  double total = 0;
  while (std::ssize(windows) < budget.most &&
         (std::ssize(windows) < budget.least || total < budget.seconds * 1e6)) {
    const bool ask = windows.size() % kClockEvery == 0 || windows.back() > kLong;
    windows.push_back(
        time(launch, ask ? [&] { clocks.push_back(clocks_.sm_mhz()); } : std::function<void()>()));
    total += windows.back();
  }
  std::ranges::sort(clocks);
  if (!clocks.empty()) {
    replays.sm_clock = clocks[clocks.size() / 2];
    replays.sm_clock_least = clocks.front();
  }
  replays.times = summarise(std::move(windows));
  return replays;
}

Rate Meter::rate(int windows, double work, const std::function<void()>& start) const {
  time(start);
  std::vector<double> times;
  for (int i = 0; i < windows; ++i) times.push_back(time(start));
  return rate_of(summarise(std::move(times)), work);
}

Rate Meter::reads(int windows) const {
  std::size_t free = 0, all = 0;
  check(cudaMemGetInfo(&free, &all), "asking for free memory");
  const std::size_t bytes = std::min(kMostRead, free / 2);
  const CardBytes memory = filled(bytes, kReadable), sink = allocate(sizeof(unsigned));
  const ReadLaunch launch{memory.get(), bytes, reinterpret_cast<unsigned*>(sink.get()), multiprocessors_};
  return rate(windows, static_cast<double>(launch.bytes_read()),
              [&] { check(launch.start(stream_), "reading memory"); });
}

Rate Meter::products(int windows) const {
  const CardBytes sink = allocate(sizeof(float));
  const ProductLaunch launch{reinterpret_cast<float*>(sink.get()), multiprocessors_, kRounds};
  return rate(windows, launch.flops(), [&] { check(launch.start(stream_), "multiplying"); });
}

}  // namespace

const OpenCard kOpenCard = [](int card) -> std::unique_ptr<CardMeter> {
  return std::make_unique<Meter>(card);
};

}  // namespace sluice::testing
