// SPDX-License-Identifier: Apache-2.0
#include "testing/measure_card.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/error.h"
#include "format/formats.h"
#include "sluice/plan.h"
#include "testing/card_meter.h"
#include "testing/synthetic.h"

namespace sluice::testing {
namespace {

constexpr int kMostLayers = 64, kCaches = 16;       // layers together are 16 times L2 if 64 are enough
constexpr int kCalls = 16, kCallsOfManyTokens = 4;  // in a graph
constexpr int kManyTokens = 257;

template <class T>
CardBytes upload(const CardMeter& meter, const std::vector<T>& host) {
  CardBytes card = meter.allocate(host.size() * sizeof(T));
  meter.write(card.get(), std::as_bytes(std::span(host)));
  return card;
}

/// What a call reads beside its rows.
struct Call {
  CardBytes ids, weights, logits;  // ids and weights, or logits
  int distinct = 0;                // experts that it goes to
};

/// Drawn layers have no router; from logits theirs selects what the logits say.
LayerWeights with_neutral_router(const LayerSpec& spec, LayerWeights weights) {
  struct Owned {
    std::vector<float> zeros, ones;
    std::shared_ptr<const void> rest;
  };
  const auto experts = static_cast<std::size_t>(spec.router.experts);
  auto owned = std::make_shared<Owned>(
      Owned{std::vector<float>(experts, 0.0f), std::vector<float>(experts, 1.0f), weights.owner});
  const auto vector = [](const std::vector<float>& values) {
    return VectorView{reinterpret_cast<const std::byte*>(values.data()), DType::f32, std::ssize(values),
                      sizeof(float)};
  };
  RouterWeights& router = weights.router;
  if (spec.router.selection_bias && !router.selection_bias) router.selection_bias = vector(owned->zeros);
  if (spec.router.expert_scale && !router.expert_scale) router.expert_scale = vector(owned->ones);
  weights.owner = std::move(owned);
  return weights;
}

class CardBench {
 public:
  CardBench(const BenchRequest& request, const DeviceFacts& device, const LayerWeights& weights)
      : request_(request), device_(device), meter_(kOpenCard(device.index)) {
    pack(weights);
    auto ceilings = std::make_shared<Ceilings>();
    ceilings->sequential = meter_->reads(request.ceiling_windows);
    ceilings->arithmetic = {{"bf16_mma", meter_->products(request.ceiling_windows)}};
    ceilings_ = std::move(ceilings);
  }

  BenchResult time(int tokens) const;

 private:
  const LayerSpec& spec() const { return request_.layer; }
  void pack(const LayerWeights& weights);
  Call draw_call(int tokens, int number) const;
  std::vector<Call> draw_calls(int tokens, const DeviceCall& call) const;
  void enqueue(int number, const Call& call, DeviceCall with) const;
  double bytes_of(double experts, int tokens) const;
  double all_flops(int tokens) const;

  const BenchRequest& request_;
  const DeviceFacts& device_;
  const std::unique_ptr<CardMeter> meter_;
  std::vector<Layer> layers_;
  std::shared_ptr<const Ceilings> ceilings_;
};

void CardBench::pack(const LayerWeights& weights) {
  const Plan plan =
      choose({.layer = spec(), .device = device_, .tokens = request_.tokens, .by_name = request_.backend});
  const LayerWeights complete = with_neutral_router(spec(), weights);
  const auto more = [&] {
    layers_.emplace_back(plan, complete,
                         LayerOptions{.executor = request_.executor,
                                      .progress = request_.progress,
                                      .cache = request_.cache,
                                      .cache_check = CacheCheck::at_load});
    if (request_.on_cache && layers_.size() == 1) request_.on_cache(layers_[0].cache());
  };
  more();
  const double wanted = std::ceil(static_cast<double>(kCaches * meter_->l2_bytes()) /
                                  static_cast<double>(layers_[0].packed_bytes()));
  const int count = static_cast<int>(std::clamp(wanted, 2.0, static_cast<double>(kMostLayers)));
  while (std::ssize(layers_) < count) more();
}

Call CardBench::draw_call(int tokens, int number) const {
  const ExpertsSpec& routed = spec().routed;
  const std::vector<float> logits =
      draw_logits(tokens, routed.experts, request_.routing,
                  request_.seed + (static_cast<std::uint64_t>(tokens) << 32) + static_cast<unsigned>(number));
  if (request_.from == BenchFrom::logits)
    return {.ids = {}, .weights = {}, .logits = upload(*meter_, logits)};
  const std::vector<std::int32_t> ids = largest(logits, routed.experts, routed.top_k);
  const std::vector<float> weights(ids.size(), 1.0f / static_cast<float>(routed.top_k));
  return {.ids = upload(*meter_, ids), .weights = upload(*meter_, weights), .logits = {}};
}

/// Puts a call into the stream, on the layer whose turn it is.
void CardBench::enqueue(int number, const Call& call, DeviceCall with) const {
  if (call.ids != nullptr)
    with.routing = {reinterpret_cast<const std::int32_t*>(call.ids.get()),
                    reinterpret_cast<const float*>(call.weights.get()), with.hidden.rows,
                    spec().routed.top_k};
  else
    with.router_logits = reinterpret_cast<const float*>(call.logits.get());
  layers_[static_cast<std::size_t>(number) % layers_.size()].enqueue(with);
}

/// With the experts that each goes to, as the card routes.
std::vector<Call> CardBench::draw_calls(int tokens, const DeviceCall& with) const {
  const int few = tokens < kManyTokens ? kCalls : kCallsOfManyTokens;
  const int count = std::max(few, static_cast<int>(layers_.size()));
  std::vector<std::int32_t> used(static_cast<std::size_t>(tokens) *
                                 static_cast<std::size_t>(spec().routed.top_k));
  const CardBytes on_card = meter_->allocate(used.size() * sizeof(std::int32_t));
  std::vector<Call> calls;
  for (int i = 0; i < count; ++i) {
    calls.push_back(draw_call(tokens, i));
    DeviceCall asking = with;
    asking.topk_ids = reinterpret_cast<std::int32_t*>(on_card.get());
    enqueue(i, calls.back(), asking);
    meter_->read(std::as_writable_bytes(std::span(used)), on_card.get());
    calls.back().distinct = distinct_experts(used, spec().routed.experts);
  }
  return calls;
}

/// Weights of the experts hit and of the shared one, as files have them; inputs (bf16) and outputs (float32).
double CardBench::bytes_of(double experts, int tokens) const {
  double bytes = experts * static_cast<double>(experts_bytes(spec().routed, 1));
  if (spec().shared) bytes += static_cast<double>(experts_bytes(spec().shared->experts, 1));
  return bytes + 6.0 * tokens * spec().hidden();
}

double CardBench::all_flops(int tokens) const {
  return flops_of(spec().routed, tokens) + (spec().shared ? flops_of(spec().shared->experts, tokens) : 0);
}

BenchResult CardBench::time(int tokens) const {
  const HiddenStates hidden = synthetic_hidden(tokens, spec().hidden(), request_.seed);
  const CardBytes rows = upload(*meter_, hidden.rows);
  const CardBytes out = meter_->allocate(static_cast<std::size_t>(tokens) *
                                         static_cast<std::size_t>(spec().hidden()) * sizeof(float));
  const std::size_t workspace_bytes = layers_[0].device_workspace_bytes(tokens);
  const CardBytes workspace = meter_->allocate(workspace_bytes);
  DeviceCall call{.hidden = hidden.view,
                  .block_out = reinterpret_cast<float*>(out.get()),
                  .workspace = {workspace.get(), workspace_bytes},
                  .stream = meter_->stream()};
  call.hidden.data = rows.get();
  const std::vector<Call> calls = draw_calls(tokens, call);
  const Replays replays = meter_->replay(
      [&] {
        for (std::size_t i = 0; i < calls.size(); ++i) enqueue(static_cast<int>(i), calls[i], call);
      },
      request_.budget);

  const auto count = static_cast<double>(calls.size());
  double experts = 0;
  for (const Call& each : calls) experts += each.distinct / count;
  BenchResult result{.backend = layers_[0].plan().chosen,
                     .shape = request_.shape,
                     .format = storage_text(spec().routed),
                     .processor = detect().name,
                     .time = utc_now(),
                     .tokens = tokens,
                     .threads = 1,
                     .median_us = replays.times.median_us / count,
                     .p10_us = replays.times.p10_us / count,
                     .p90_us = replays.times.p90_us / count,
                     .best_us = replays.times.best_us / count,
                     .windows = replays.times.windows,
                     .bytes = static_cast<std::int64_t>(bytes_of(experts, tokens)),
                     .flops = all_flops(tokens)};
  result.ceilings = ceilings_;
  result.card = OnCard{.device = device_.name,
                       .driver = meter_->driver(),
                       .sm_clock = replays.sm_clock,
                       .sm_clock_least = replays.sm_clock_least,
                       .from = request_.from,
                       .routing = request_.routing,
                       .experts_hit = experts,
                       .layers = static_cast<int>(layers_.size()),
                       .calls = static_cast<int>(calls.size()),
                       .launches = replays.kernels / count,
                       .nodes = replays.nodes / count};
  set_card_floors(result, card_roof(device_, *ceilings_));
  return result;
}

}  // namespace

CardRoof card_roof(const DeviceFacts& device, const Ceilings& measured) {
  constexpr std::string_view kH200 = "NVIDIA H200";  // bulk copies and dense wgmma, alone on the card
  if (device.name == kH200) return {4650, 870e3, "bf16_wgmma", "measured once on an H200"};
  return {measured.sequential.median, std::max(device.peak_gflops, measured.arithmetic[0].gflops.median),
          "bf16_peak", "bytes: this run; arithmetic: the card's clocks"};
}

void set_card_floors(BenchResult& result, const CardRoof& roof) {
  const auto floor = [&](double read_gbps) {
    return 1e-3 * std::max(static_cast<double>(result.bytes) / read_gbps, result.flops / roof.gflops);
  };
  result.roof.read_gbps = roof.read_gbps;
  result.roof.gflops = roof.gflops;
  result.roof.arithmetic = roof.arithmetic;
  result.floor_us = result.floor_p10_us = result.floor_best_us = floor(roof.read_gbps);
  result.share_of_floor = result.floor_us / result.median_us;
  result.share_of_floor_p10 = result.floor_us / result.p10_us;
  result.share_of_floor_best = result.floor_us / result.best_us;
  result.card->roof_from = roof.from;
  result.card->floor_here_us = floor(result.ceilings->sequential.median);
  result.card->share_of_floor_here = result.card->floor_here_us / result.median_us;
}

std::vector<BenchResult> bench_card(const BenchRequest& request, const DeviceFacts& device,
                                    LayerWeights weights,
                                    const std::function<void(const BenchResult&)>& each) {
  require(request.from == BenchFrom::ids || !request.layer.router.by_token_id, ErrorKind::invalid_argument,
          [] {
            return ErrorInfo{.code = "routes_by_token_id",
                             .what = "this layer's logits do not decide where its tokens go",
                             .why = "its router takes the ids from a table, by token id",
                             .todo = "Measure it from ids"};
          });
  const CardBench bench(request, device, weights);
  weights = {};
  std::vector<BenchResult> results;
  for (const int tokens : request.tokens) {
    results.push_back(bench.time(tokens));
    if (each) each(results.back());
  }
  return results;
}

}  // namespace sluice::testing
