// SPDX-License-Identifier: Apache-2.0
// Times whole layers of a card's backend, everything in the card's memory, calls in a CUDA graph: routed
// experts with given ids, or all of a layer from its router's logits through the public interface. Every call
// has a routing of its own and layers take turns, so weights are not in L2 from the call before (at one token
// a layer of gpt-oss nearly fits it). One JSON line a result, in the form of bench/results.
//
//   bench_cuda_layer [--backend cuda.decode] --shape gpt-oss-120b --format mxfp4 --tokens 1,16,256
//                    [--routing zipf] [--calls 16]
//                    [--group 32] [--from logits] [--lora 16] [--seconds 0.2] [--once] [--check]
//
// --group: columns that share a scale, of integers; 128 where it is left out.
// --from logits: Layer::enqueue with logits of its own for each call; packing takes longer, since each layer
// packs all of its experts.
// --lora: the rank of an adapter that every token has, on the card, in bf16; with given ids, of cuda.mma.
// --once: one call a token count, without a graph, for a profiler. --check: results against a backend of the
// processor and against the same tokens in another batch, and no timing.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "experts/backend.h"
#include "experts/cuda/common/repack.h"
#include "experts/cuda/mma/enqueue.h"
#include "format/formats.h"
#include "sluice/layer.h"
#include "testing/synthetic.h"

namespace sluice {
namespace {

using cuda::check;

/// gpu-measured.md: one H200.
constexpr double kReadGbps = 4650, kBf16Gflops = 870e3;
constexpr int kDistinctExperts = 4, kLayers = 2;

struct Options {
  std::string backend = "cuda.decode", shape = "gpt-oss-120b", format = "mxfp4", routing = "uniform",
              from = "ids";
  std::vector<int> tokens = {1, 4, 16, 64, 256, 1024, 4096};
  int calls = 16, group = 128, lora = 0;
  double seconds = 0.2;
  bool once = false, check = false;
};

Options parse(int count, char** arguments) {
  Options o;
  for (int i = 1; i < count; ++i) {
    const std::string name = arguments[i];
    if (name == "--once" || name == "--check") {
      (name == "--once" ? o.once : o.check) = true;
      continue;
    }
    if (i + 1 >= count) throw std::runtime_error(name + " needs a value");
    const std::string value = arguments[++i];
    if (name == "--backend")
      o.backend = value;
    else if (name == "--shape")
      o.shape = value;
    else if (name == "--format")
      o.format = value;
    else if (name == "--routing")
      o.routing = value;
    else if (name == "--group")
      o.group = std::stoi(value);
    else if (name == "--from" && (value == "ids" || value == "logits"))
      o.from = value;
    else if (name == "--lora")
      o.lora = std::stoi(value);
    else if (name == "--calls")
      o.calls = std::stoi(value);
    else if (name == "--seconds")
      o.seconds = std::stod(value);
    else if (name == "--tokens") {
      o.tokens.clear();
      for (std::size_t at = 0; at < value.size();
           at = value.find(',', at) == std::string::npos ? value.size() : value.find(',', at) + 1)
        o.tokens.push_back(std::stoi(value.substr(at)));
    } else
      throw std::runtime_error("unknown option " + name);
  }
  return o;
}

template <class T>
cuda::DeviceMemory upload(const std::vector<T>& host) {
  cuda::DeviceMemory memory = cuda::allocate(host.size() * sizeof(T));
  check(cudaMemcpy(memory.get(), host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice), "copying");
  return memory;
}

/// A layer whose experts are a few drawn ones again and again, each in memory of its own.
std::unique_ptr<cuda::Packed> make_layer(const Backend& backend, const ExpertsSpec& spec,
                                         const std::vector<std::byte>& few) {
  const cuda::ExpertLayout layout = cuda::expert_layout(spec);
  const auto bytes = static_cast<std::size_t>(layout.bytes);
  auto packed = std::make_unique<cuda::Packed>(
      backend, spec, layout, cuda::allocate(bytes * static_cast<std::size_t>(spec.local_experts)));
  for (int e = 0; e < spec.local_experts; ++e)
    check(cudaMemcpy(packed->memory.get() + static_cast<std::size_t>(e) * bytes,
                     few.data() + static_cast<std::size_t>(e % kDistinctExperts) * bytes, bytes,
                     cudaMemcpyHostToDevice),
          "copying weights");
  return packed;
}

/// An adapter of all experts, whose matrices are one number: A by rows, B by columns.
struct Adapter {
  cuda::DeviceMemory matrices, table, of_token;
  cuda::CardLora lora;

  Adapter() = default;
  Adapter(const ExpertsSpec& spec, int rank, int tokens) : of_token(upload(std::vector<int>(tokens, 0))) {
    const std::size_t expert = 6 * std::size_t(rank) * std::size_t(spec.hidden + spec.intermediate);
    matrices = cuda::allocate(expert * std::size_t(spec.local_experts));
    check(cudaMemset(matrices.get(), 0x3B, expert * std::size_t(spec.local_experts)), "filling");
    std::vector<cuda::CardLoraExpert> experts(std::size_t(spec.local_experts));
    for (std::size_t e = 0; e < experts.size(); ++e) {
      const std::byte* at = matrices.get() + e * expert;
      const auto delta = [&](int rows, int cols) {
        const std::byte* const first =
            std::exchange(at, at + std::size_t(rank) * std::size_t(rows + cols) * 2);
        const std::byte* const behind = first + std::size_t(rank) * std::size_t(cols) * 2;
        return cuda::CardDelta{{first, DType::bf16, cols, 1}, {behind, DType::bf16, 1, rows}, 1.0f, rank};
      };
      experts[e] = {delta(spec.intermediate, spec.hidden), delta(spec.intermediate, spec.hidden),
                    delta(spec.hidden, spec.intermediate)};
    }
    table = upload(experts);
    lora = {.rank = rank,
            .experts = reinterpret_cast<const cuda::CardLoraExpert*>(table.get()),
            .of_token = reinterpret_cast<const std::int32_t*>(of_token.get()),
            .adapters = 1,
            .local_experts = spec.local_experts};
  }
};

/// Logits of which the top_k are experts without replacement, all alike or Zipf(1) over shuffled experts: the
/// logarithm of an expert's share, plus Gumbel noise.
std::vector<float> draw_logits(const ExpertsSpec& spec, const Options& o, int tokens, std::mt19937& random) {
  std::vector<double> share(static_cast<std::size_t>(spec.experts), 0.0);
  if (o.routing == "zipf")
    for (std::size_t e = 0; e < share.size(); ++e) share[e] = -std::log(static_cast<double>(e + 1));
  std::shuffle(share.begin(), share.end(), random);
  std::extreme_value_distribution<double> gumbel;
  std::vector<float> logits;
  for (int t = 0; t < tokens; ++t)
    for (const double s : share) logits.push_back(static_cast<float>(s + gumbel(random)));
  return logits;
}

/// The largest of every token, the largest first.
std::vector<std::int32_t> largest(const ExpertsSpec& spec, const std::vector<float>& logits) {
  const auto experts = static_cast<std::size_t>(spec.experts);
  std::vector<std::int32_t> order(experts), ids;
  for (std::size_t first = 0; first < logits.size(); first += experts) {
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + spec.top_k, order.end(),
                      [&](std::int32_t a, std::int32_t b) {
                        return logits[first + std::size_t(a)] > logits[first + std::size_t(b)];
                      });
    ids.insert(ids.end(), order.begin(), order.begin() + spec.top_k);
  }
  return ids;
}

/// What a call reads and writes, on the card.
struct Call {
  cuda::DeviceMemory ids, weights, logits;
  int distinct;
};

class Bench {
 public:
  Bench(const Options& o, const Backend& backend)
      : o_(o), layer_(testing::public_shape(o.shape, Format::parse(o.format).value())), backend_(backend) {
    if (is_integer(spec().formats.up)) {
      MatrixFormats& formats = layer_.routed.formats;
      for (Grouping* grouping : {&formats.gate_grouping, &formats.up_grouping, &formats.down_grouping})
        grouping->columns = o.group;
    }
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
  }

  void run() {
    pack();
    for (const int tokens : o_.tokens) {
      try {
        if (o_.check)
          compare(tokens);
        else
          time(tokens);
      } catch (const std::exception& e) {
        fmt::print("{{\"tokens\": {}, \"error\": \"{}\"}}\n", tokens, e.what());
      }
      std::fflush(stdout);
    }
  }

 private:
  const ExpertsSpec& spec() const { return layer_.routed; }

  LayerSpec few_experts() const {
    LayerSpec few = layer_;
    few.routed.experts = few.routed.local_experts = kDistinctExperts;
    few.routed.top_k = std::min(few.routed.top_k, kDistinctExperts);
    return few;
  }

  bool from_logits() const { return o_.from == "logits" && !o_.check; }

  void pack() {
    const std::shared_ptr<Executor> team = make_thread_team();
    const LayerSpec few = few_experts();
    few_weights_ = testing::synthetic_weights(few, 1, *team);
    if (from_logits()) {
      for (int i = 0; i < kLayers; ++i) whole_layers_.push_back(make_whole_layer(team));
      return;
    }
    const cuda::ExpertLayout layout = cuda::expert_layout(spec());
    std::vector<std::byte> memory(static_cast<std::size_t>(layout.bytes) * kDistinctExperts);
    for (int e = 0; e < kDistinctExperts; ++e)
      cuda::repack(spec(), layout, few_weights_.routed[static_cast<std::size_t>(e)],
                   memory.data() + e * layout.bytes, *team);
    for (int i = 0; i < (o_.check ? 1 : kLayers); ++i)
      layers_.push_back(make_layer(backend_, spec(), memory));
    if (o_.lora > 0) adapter_ = Adapter(spec(), o_.lora, *std::ranges::max_element(o_.tokens));
  }

  /// All experts are the drawn ones again and again, each packed for itself. No selection bias and no expert
  /// scale changes which are selected, or costs anything to leave out.
  Layer make_whole_layer(const std::shared_ptr<Executor>& team) {
    LayerWeights weights = few_weights_;
    weights.routed.clear();
    for (int e = 0; e < spec().local_experts; ++e)
      weights.routed.push_back(few_weights_.routed[static_cast<std::size_t>(e % kDistinctExperts)]);
    const auto vector = [&](const std::vector<float>& values) {
      return VectorView{reinterpret_cast<const std::byte*>(values.data()), DType::f32, std::ssize(values),
                        sizeof(float)};
    };
    const auto experts = static_cast<std::size_t>(spec().experts);
    const std::vector<float> zeros(experts, 0.0f), ones(experts, 1.0f);
    if (layer_.router.selection_bias) weights.router.selection_bias = vector(zeros);
    if (layer_.router.expert_scale) weights.router.expert_scale = vector(ones);
    const Plan plan = choose({.layer = layer_,
                              .device = known_device("cuda"),
                              .tokens = {1},
                              .by_name = std::string(backend_.name)});
    return Layer(plan, weights, {.executor = team});
  }

  /// Puts call `i` into the stream.
  void enqueue(int i, const Call& call, const RowsView& rows, float* output,
               std::span<std::byte> workspace) const {
    const auto layer = static_cast<std::size_t>(i % kLayers);
    if (from_logits())
      whole_layers_[layer].enqueue({.hidden = rows,
                                    .router_logits = reinterpret_cast<const float*>(call.logits.get()),
                                    .block_out = output,
                                    .workspace = workspace,
                                    .stream = stream_});
    else
      cuda::enqueue(*layers_[layer], card_call(rows, call, output, workspace.data()));
  }

  Call make_call(int tokens, std::mt19937& random) const {
    const std::vector<float> logits = draw_logits(spec(), o_, tokens, random);
    const std::vector<std::int32_t> ids = largest(spec(), logits);
    std::vector<bool> hit(static_cast<std::size_t>(spec().experts));
    for (const std::int32_t id : ids) hit[static_cast<std::size_t>(id)] = true;
    return {upload(ids), upload(std::vector<float>(ids.size(), 1.0f / static_cast<float>(spec().top_k))),
            upload(logits), static_cast<int>(std::count(hit.begin(), hit.end(), true))};
  }

  cuda::CardCall card_call(const RowsView& rows, const Call& call, float* output,
                           std::byte* workspace) const {
    return {.input = rows,
            .top_k = spec().top_k,
            .ids = reinterpret_cast<const std::int32_t*>(call.ids.get()),
            .weights = reinterpret_cast<const float*>(call.weights.get()),
            .expert_map = nullptr,
            .output = output,
            .workspace = workspace,
            .stream = stream_,
            .lora = adapter_.lora};
  }

  struct Memory {
    cuda::DeviceMemory rows, output, workspace;
    RowsView view;
    std::size_t workspace_bytes = 0;
  };
  Memory memory_for(int tokens) const {
    const testing::HiddenStates hidden = testing::synthetic_hidden(tokens, spec().hidden, 7);
    Memory m{upload(hidden.rows),
             cuda::allocate(std::size_t(tokens) * std::size_t(spec().hidden) * 4),
             {},
             hidden.view,
             0};
    m.view.data = m.rows.get();
    const std::size_t bytes = from_logits() ? whole_layers_[0].device_workspace_bytes(tokens)
                                            : cuda::card_bytes(*layers_[0], m.view, spec().top_k, o_.lora);
    m.workspace = cuda::allocate(bytes);
    m.workspace_bytes = bytes;
    check(cudaMemset(m.workspace.get(), 0xFF, bytes), "poisoning");
    check(cudaMemset(m.output.get(), 0xFF, std::size_t(tokens) * std::size_t(spec().hidden) * 4),
          "poisoning");
    return m;
  }

  void time(int tokens) {
    std::mt19937 random(static_cast<unsigned>(tokens));
    const Memory m = memory_for(tokens);
    const int many = o_.once ? 1 : tokens > 256 ? std::max(2, o_.calls / 4) : o_.calls;
    std::vector<Call> calls;
    for (int i = 0; i < many; ++i) calls.push_back(make_call(tokens, random));
    const auto all = [&] {
      for (int i = 0; i < many; ++i)
        enqueue(i, calls[static_cast<std::size_t>(i)], m.view, reinterpret_cast<float*>(m.output.get()),
                {m.workspace.get(), m.workspace_bytes});
    };
    all();
    check(cudaStreamSynchronize(stream_), "a layer");
    if (o_.once) return;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capturing");
    all();
    check(cudaStreamEndCapture(stream_, &graph), "capturing");
    check(cudaGraphInstantiate(&exec, graph, 0), "making a graph");
    report(tokens, calls, replay(exec, many));
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
  }

  /// Microseconds a call, of every replay.
  std::vector<double> replay(cudaGraphExec_t exec, int calls) const {
    cudaEvent_t before = nullptr, after = nullptr;
    check(cudaEventCreate(&before), "an event");
    check(cudaEventCreate(&after), "an event");
    std::vector<double> times;
    double total = 0;
    for (int i = -2; i < 400 && (i < 10 || total < o_.seconds * 1e6); ++i) {
      check(cudaEventRecord(before, stream_), "an event");
      check(cudaGraphLaunch(exec, stream_), "a graph");
      check(cudaEventRecord(after, stream_), "an event");
      check(cudaEventSynchronize(after), "a graph");
      float ms = 0;
      check(cudaEventElapsedTime(&ms, before, after), "an event");
      if (i < 0) continue;
      total += 1e3 * static_cast<double>(ms);
      times.push_back(1e3 * static_cast<double>(ms) / calls);
    }
    cudaEventDestroy(before);
    cudaEventDestroy(after);
    std::sort(times.begin(), times.end());
    return times;
  }

  void report(int tokens, const std::vector<Call>& calls, const std::vector<double>& times) const {
    double experts = 0;
    for (const Call& call : calls) experts += call.distinct;
    experts /= static_cast<double>(calls.size());
    const double slots = double(tokens) * spec().top_k;
    const double matrices = spec().formats.gate ? 3 : 2;
    const double weights = matrices * spec().hidden * spec().intermediate;
    const double bytes = experts * static_cast<double>(few_bytes()) + 6.0 * tokens * spec().hidden;
    const double flops = 2 * slots * weights;
    const double floor = std::max(1e-3 * bytes / kReadGbps, 1e-3 * flops / kBf16Gflops);
    const double median = times[times.size() / 2];
    fmt::print(
        "{{\"schema\": \"sluice.bench/1\", \"backend\": \"{}\", \"shape\": \"{}\", \"format\": \"{}\", "
        "\"from\": \"{}\", \"routing\": \"{}\", \"tokens\": {}, \"median_us\": {:.2f}, \"p10_us\": {:.2f}, "
        "\"p90_us\": {:.2f}, "
        "\"best_us\": {:.2f}, \"windows\": {}, \"experts_hit\": {:.1f}, \"bytes\": {:.0f}, \"flops\": "
        "{:.0f}, "
        "\"floor_us\": {:.2f}, \"share_of_floor\": {:.3f}, \"tb_per_s\": {:.2f}, \"tflops\": {:.1f}, "
        "\"sm_clock\": {}}}\n",
        o_.backend, o_.shape, storage_text(spec().formats),
        o_.lora > 0 ? fmt::format("{}, lora {}", o_.from, o_.lora) : o_.from, o_.routing, tokens, median,
        times[times.size() / 10], times[times.size() * 9 / 10], times[0], times.size(), experts, bytes, flops,
        floor, floor / median, 1e-6 * bytes / median, 1e-6 * flops / median, sm_clock());
  }

  /// Of one expert, as files have it.
  std::int64_t few_bytes() const { return experts_bytes(spec(), 1); }

  static int sm_clock() {
    int clock = 0;
    if (FILE* smi =
            popen("nvidia-smi --query-gpu=clocks.sm --format=csv,noheader,nounits -i 0 2>/dev/null", "r")) {
      if (std::fscanf(smi, "%d", &clock) != 1) clock = 0;
      pclose(smi);
    }
    return clock;
  }

  std::vector<float> outputs(int tokens, int first, const std::vector<std::int32_t>& ids,
                             const testing::HiddenStates& hidden) const {
    const std::size_t k = std::size_t(spec().top_k), width = std::size_t(spec().hidden),
                      rows = std::size_t(tokens);
    const std::vector<std::int32_t> own(ids.begin() + std::ptrdiff_t(std::size_t(first) * k),
                                        ids.begin() + std::ptrdiff_t((std::size_t(first) + rows) * k));
    const std::vector<std::byte> x(
        hidden.rows.begin() + std::ptrdiff_t(std::size_t(first) * width * 2),
        hidden.rows.begin() + std::ptrdiff_t((std::size_t(first) + rows) * width * 2));
    const Call call{upload(own), upload(std::vector<float>(own.size(), 0.25f)), {}, 0};
    const Memory m = memory_for(tokens);
    check(cudaMemcpy(m.rows.get(), x.data(), x.size(), cudaMemcpyHostToDevice), "copying");
    cuda::enqueue(*layers_[0],
                  card_call(m.view, call, reinterpret_cast<float*>(m.output.get()), m.workspace.get()));
    check(cudaStreamSynchronize(stream_), "a layer");
    std::vector<float> out(rows * width);
    check(cudaMemcpy(out.data(), m.output.get(), out.size() * 4, cudaMemcpyDeviceToHost), "copying");
    return out;
  }

  /// The first tokens of a batch, alone and together, in bits; and against the processor.
  void compare(int tokens) {
    std::mt19937 random(static_cast<unsigned>(tokens));
    const testing::HiddenStates hidden = testing::synthetic_hidden(tokens, spec().hidden, 7);
    const std::vector<std::int32_t> ids = largest(spec(), draw_logits(spec(), o_, tokens, random));
    const std::vector<float> all = outputs(tokens, 0, ids, hidden), again = outputs(tokens, 0, ids, hidden);
    const std::size_t width = std::size_t(spec().hidden);
    int different = std::memcmp(all.data(), again.data(), all.size() * 4) != 0 ? 1 : 0;
    for (int t = 0; t < std::min(tokens, 6); ++t) {
      const int token = t * (tokens - 1) / std::max(1, std::min(tokens, 6) - 1);
      const std::vector<float> alone = outputs(1, token, ids, hidden);
      different += std::memcmp(alone.data(), all.data() + std::size_t(token) * width, width * 4) != 0 ? 1 : 0;
    }
    fmt::print("{{\"check\": \"{} {}\", \"tokens\": {}, \"rows_that_differ\": {}, \"rel_l2\": {:.3g}}}\n",
               o_.shape, storage_text(spec().formats), tokens, different,
               against_processor(all, ids, hidden));
  }

  /// Token 0. An expert is the drawn one of its number modulo kDistinctExperts.
  double against_processor(const std::vector<float>& got, const std::vector<std::int32_t>& ids,
                           const testing::HiddenStates& hidden) const {
    LayerSpec few = few_experts();
    few.routed.top_k = few.router.top_k = 1;
    few.router.experts = kDistinctExperts;
    const Plan plan = choose({.layer = few, .device = detect(), .tokens = {1}});
    const Layer layer(plan, few_weights_);
    const std::size_t width = std::size_t(spec().hidden);
    std::vector<float> want(width), one(width);
    std::vector<std::byte> workspace(layer.workspace_bytes(1));
    for (int k = 0; k < spec().top_k; ++k) {
      const std::int32_t id = ids[std::size_t(k)] % kDistinctExperts;
      const float weight = 0.25f;
      RowsView row = hidden.view;
      row.data = hidden.rows.data();
      row.rows = 1;
      layer.run({.hidden = row,
                 .routing = {&id, &weight, 1, 1},
                 .experts_out = one.data(),
                 .workspace = workspace});
      for (std::size_t i = 0; i < width; ++i) want[i] += one[i];
    }
    double error = 0, whole = 0;
    for (std::size_t i = 0; i < width; ++i) {
      error += std::pow(double(got[i]) - double(want[i]), 2);
      whole += std::pow(double(want[i]), 2);
    }
    return std::sqrt(error / whole);
  }

  const Options& o_;
  LayerSpec layer_;
  const Backend& backend_;
  cudaStream_t stream_ = nullptr;
  LayerWeights few_weights_;
  std::vector<std::unique_ptr<cuda::Packed>> layers_;
  Adapter adapter_;
  std::vector<Layer> whole_layers_;
};

}  // namespace
}  // namespace sluice

int main(int count, char** arguments) {
  try {
    const sluice::Options options = sluice::parse(count, arguments);
    for (const sluice::Backend* backend : sluice::backends())
      if (backend->name == options.backend) sluice::Bench(options, *backend).run();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_cuda_layer: %s\n", e.what());
    return 1;
  }
  return 0;
}
