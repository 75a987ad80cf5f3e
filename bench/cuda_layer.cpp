// SPDX-License-Identifier: Apache-2.0
// What `sluice bench` does not do with layers of published shapes on a card: single calls for a profiler, and
// results against a backend of the processor and against the same tokens in other batches. Without --once and
// --check it times as `sluice bench --device cuda --json` does, and prints the same lines.
//
//   bench_cuda_layer [--backend cuda.decode] --shape gpt-oss-120b --format mxfp4 --tokens 1,16,256
//                    [--routing zipf] [--group 32] [--from logits] [--seconds 0.2] [--once] [--check]
//
// --once: one call a token count, from ids, without a graph. --check: relative L2 of a row against the
// processor, and how many rows have other bits alone. Both draw four experts and pack those again and again.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "experts/backend.h"
#include "experts/cuda/common/repack.h"
#include "experts/cuda/mma/enqueue.h"
#include "format/formats.h"
#include "sluice/layer.h"
#include "testing/bench_json.h"
#include "testing/draw_routing.h"
#include "testing/synthetic.h"

namespace sluice {
namespace {

using cuda::check;

constexpr int kDistinctExperts = 4;
constexpr float kWeight = 0.25f;  // of every slot

struct Options {
  std::string backend = "cuda.decode", shape = "gpt-oss-120b", format = "mxfp4", routing = "uniform",
              from = "ids";
  std::vector<int> tokens = {1, 4, 16, 64, 256, 1024, 4096};
  int group = 128;
  double seconds = 0.2;
  bool once = false, check = false;

  testing::Popularity popularity() const {
    return routing == "zipf" ? testing::Popularity::zipf : testing::Popularity::uniform;
  }
};

std::vector<int> numbers(const std::string& text) {
  std::vector<int> list;
  for (std::size_t at = 0; at < text.size();) {
    list.push_back(std::stoi(text.substr(at)));
    const std::size_t comma = text.find(',', at);
    at = comma == std::string::npos ? text.size() : comma + 1;
  }
  return list;
}

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
    else if (name == "--routing" && (value == "uniform" || value == "zipf"))
      o.routing = value;
    else if (name == "--group")
      o.group = std::stoi(value);
    else if (name == "--from" && (value == "ids" || value == "logits"))
      o.from = value;
    else if (name == "--seconds")
      o.seconds = std::stod(value);
    else if (name == "--tokens")
      o.tokens = numbers(value);
    else
      throw std::runtime_error("unknown option " + name);
  }
  return o;
}

template <class T>
cuda::DeviceMemory upload(std::span<const T> host) {
  cuda::DeviceMemory memory = cuda::allocate(host.size_bytes());
  check(cudaMemcpy(memory.get(), host.data(), host.size_bytes(), cudaMemcpyHostToDevice), "copying");
  return memory;
}

cuda::DeviceMemory poisoned(std::size_t bytes) {
  cuda::DeviceMemory memory = cuda::allocate(bytes);
  check(cudaMemset(memory.get(), 0xFF, bytes), "poisoning");
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

LayerSpec layer_of(const Options& o) {
  LayerSpec layer = testing::public_shape(o.shape, Format::parse(o.format).value());
  if (is_integer(layer.routed.formats.up)) testing::set_group(layer, o.group);
  return layer;
}

/// As sluice bench.
void time(const Options& o) {
  const std::shared_ptr<Executor> team = make_thread_team();
  const testing::BenchRequest request{
      .layer = layer_of(o),
      .shape = o.shape,
      .backend = o.backend,
      .from = o.from == "ids" ? testing::BenchFrom::ids : testing::BenchFrom::logits,
      .routing = o.popularity(),
      .tokens = o.tokens,
      .executor = team,
      .budget = {.least = 10, .most = 400, .seconds = o.seconds}};
  testing::bench_device(request);
  testing::bench_layer(request, testing::synthetic_weights(request.layer, 1, *team),
                       [](const testing::BenchResult& result) {
                         fmt::print("{}", testing::bench_json(result));
                         std::fflush(stdout);
                       });
}

class Calls {
 public:
  Calls(const Options& o, const Backend& backend) : o_(o), layer_(layer_of(o)), backend_(backend) {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
    pack();
  }
  ~Calls() { cudaStreamDestroy(stream_); }
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;

  void run() const {
    for (const int tokens : o_.tokens) {
      const testing::HiddenStates hidden = testing::synthetic_hidden(tokens, spec().hidden, 7);
      const std::vector<std::int32_t> ids = draw_ids(tokens);
      if (o_.check)
        compare(tokens, hidden, ids);
      else
        outputs({0, tokens}, hidden, ids);
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

  void pack() {
    const std::shared_ptr<Executor> team = make_thread_team();
    few_weights_ = testing::synthetic_weights(few_experts(), 1, *team);
    const cuda::ExpertLayout layout = cuda::expert_layout(spec());
    std::vector<std::byte> memory(static_cast<std::size_t>(layout.bytes) * kDistinctExperts);
    for (int e = 0; e < kDistinctExperts; ++e)
      cuda::repack(spec(), layout, few_weights_.routed[static_cast<std::size_t>(e)],
                   memory.data() + e * layout.bytes, *team);
    packed_ = make_layer(backend_, spec(), memory);
  }

  std::vector<std::int32_t> draw_ids(int tokens) const {
    return testing::largest(
        testing::draw_logits(tokens, spec().experts, o_.popularity(), static_cast<std::uint64_t>(tokens)),
        spec().experts, spec().top_k);
  }

  /// Of some of the tokens, as a call of their own.
  std::vector<float> outputs(const RowRange& range, const testing::HiddenStates& hidden,
                             const std::vector<std::int32_t>& all_ids) const {
    const auto first = static_cast<std::size_t>(range.first), rows = static_cast<std::size_t>(range.count);
    const std::size_t k = std::size_t(spec().top_k), width = std::size_t(spec().hidden);
    const cuda::DeviceMemory x = upload(std::span(hidden.rows).subspan(first * width * 2, rows * width * 2));
    const cuda::DeviceMemory ids = upload(std::span(all_ids).subspan(first * k, rows * k));
    const cuda::DeviceMemory weights = upload(std::span<const float>(std::vector<float>(rows * k, kWeight)));
    RowsView view = hidden.view;
    view.data = x.get();
    view.rows = range.count;
    const std::size_t bytes = cuda::card_bytes(*packed_, view, spec().top_k);
    const cuda::DeviceMemory output = poisoned(rows * width * 4), workspace = poisoned(bytes);
    cuda::enqueue(*packed_, {.input = view,
                             .top_k = spec().top_k,
                             .ids = reinterpret_cast<const std::int32_t*>(ids.get()),
                             .weights = reinterpret_cast<const float*>(weights.get()),
                             .output = reinterpret_cast<float*>(output.get()),
                             .workspace = workspace.get(),
                             .stream = stream_});
    check(cudaStreamSynchronize(stream_), "a layer");
    std::vector<float> out(rows * width);
    check(cudaMemcpy(out.data(), output.get(), out.size() * 4, cudaMemcpyDeviceToHost), "copying");
    return out;
  }

  /// Tokens of a batch, alone and together, in bits; and against the processor.
  void compare(int tokens, const testing::HiddenStates& hidden, const std::vector<std::int32_t>& ids) const {
    const std::vector<float> all = outputs({0, tokens}, hidden, ids),
                             again = outputs({0, tokens}, hidden, ids);
    const std::size_t width = std::size_t(spec().hidden);
    int different = std::memcmp(all.data(), again.data(), all.size() * 4) != 0 ? 1 : 0;
    const int some = std::min(tokens, 6);
    for (int t = 0; t < some; ++t) {
      const int token = t * (tokens - 1) / std::max(1, some - 1);
      const std::vector<float> alone = outputs({token, 1}, hidden, ids);
      different += std::memcmp(alone.data(), all.data() + std::size_t(token) * width, width * 4) != 0 ? 1 : 0;
    }
    fmt::print(
        "{{\"check\": \"{} {}\", \"backend\": \"{}\", \"tokens\": {}, \"rows_that_differ\": {}, \"rel_l2\": "
        "{:.3g}}}\n",
        o_.shape, storage_text(spec().formats), o_.backend, tokens, different,
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
      const float weight = kWeight;
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
  const LayerSpec layer_;
  const Backend& backend_;
  cudaStream_t stream_ = nullptr;
  LayerWeights few_weights_;
  std::unique_ptr<cuda::Packed> packed_;
};

}  // namespace
}  // namespace sluice

int main(int count, char** arguments) {
  try {
    const sluice::Options options = sluice::parse(count, arguments);
    if (!options.once && !options.check) {
      sluice::time(options);
      return 0;
    }
    for (const sluice::Backend* backend : sluice::backends())
      if (backend->name == options.backend) sluice::Calls(options, *backend).run();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_cuda_layer: %s\n", e.what());
    return 1;
  }
  return 0;
}
