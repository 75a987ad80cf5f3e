// SPDX-License-Identifier: Apache-2.0
#include "testing/bench_json.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace sluice::testing {
namespace {

using Json = nlohmann::ordered_json;

/// JSON has no infinity and no NaN.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json text_or_null(std::string_view text) { return text.empty() ? Json(nullptr) : Json(text); }

Json mhz_or_null(int mhz) { return mhz == 0 ? Json(nullptr) : Json(mhz); }

Json rate_json(const Rate& rate) {
  return {{"median", number(rate.median)}, {"p10", number(rate.p10)}, {"best", number(rate.best)}};
}

/// A card has memory of one kind.
Json ceilings_json(const Ceilings& ceilings, bool card) {
  Json reads = {{"sequential", rate_json(ceilings.sequential)}};
  if (!card)
    reads = {{"slices_2m", rate_json(ceilings.slices_2m)},
             {"slices_4k", rate_json(ceilings.slices_4k)},
             {"sequential", rate_json(ceilings.sequential)}};
  Json arithmetic = Json::object();
  for (const Ceilings::Arithmetic& kind : ceilings.arithmetic)
    arithmetic[std::string(kind.name)] = rate_json(kind.gflops);
  Json json = {{"read_gbps", reads}, {"gflops", arithmetic}};
  if (!card) json["huge_pages"] = number(ceilings.huge_pages);
  return json;
}

Json roof_json(const Roof& roof) {
  return {{"read_gbps", number(roof.read_gbps)},
          {"gflops", number(roof.gflops)},
          {"arithmetic", roof.arithmetic}};
}

void add_card(Json& json, const OnCard& card, const BenchResult& result) {
  json["roof"]["from"] = card.roof_from;
  json.update({{"device", card.device},
               {"driver", text_or_null(card.driver)},
               {"sm_clock", mhz_or_null(card.sm_clock)},
               {"sm_clock_least", mhz_or_null(card.sm_clock_least)},
               {"from", card.from == BenchFrom::ids ? "ids" : "logits"},
               {"routing", card.routing == Popularity::uniform ? "uniform" : "zipf"},
               {"experts_hit", number(card.experts_hit)},
               {"layers", card.layers},
               {"calls", card.calls},
               {"launches", number(card.launches)},
               {"graph_nodes", number(card.nodes)},
               {"floor_here_us", number(card.floor_here_us)},
               {"share_of_floor_here", number(card.share_of_floor_here)},
               {"tb_per_s", number(1e-6 * static_cast<double>(result.bytes) / result.median_us)},
               {"tflops", number(1e-6 * result.flops / result.median_us)}});
}

}  // namespace

std::string bench_json(const BenchResult& result) {
  Json json = {{"schema", "sluice.bench/1"},
               {"backend", result.backend},
               {"shape", result.shape},
               {"format", result.format},
               {"processor", result.processor},
               {"commit", text_or_null(build_commit())},
               {"time", text_or_null(result.time)},
               {"tokens", result.tokens},
               {"threads", result.threads},
               {"median_us", number(result.median_us)},
               {"p10_us", number(result.p10_us)},
               {"p90_us", number(result.p90_us)},
               {"best_us", number(result.best_us)},
               {"windows", result.windows},
               {"bytes", result.bytes},
               {"flops", number(result.flops)},
               {"floor_us", number(result.floor_us)},
               {"floor_p10_us", number(result.floor_p10_us)},
               {"floor_best_us", number(result.floor_best_us)},
               {"share_of_floor", number(result.share_of_floor)},
               {"share_of_floor_p10", number(result.share_of_floor_p10)},
               {"share_of_floor_best", number(result.share_of_floor_best)},
               {"roof", roof_json(result.roof)}};
  if (result.ceilings != nullptr) json["ceilings"] = ceilings_json(*result.ceilings, result.card.has_value());
  if (result.card) add_card(json, *result.card, result);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace sluice::testing
