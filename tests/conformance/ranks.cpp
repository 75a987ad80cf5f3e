// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/ranks.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "testing/closeness.h"
#include "testing/device_for.h"
#include "testing/usable_backends.h"

namespace sluice::conformance {

Layer layer_of(const Backend& backend, const Problem& problem, const LayerWeights& weights,
               const Rank& rank) {
  LayerSpec spec = problem.spec();
  spec.shared.reset();
  spec.routed.local_experts = static_cast<int>(rank.size());
  LayerWeights here;
  std::vector<OtherFormats> others;
  here.owner = weights.owner;
  here.latent = weights.latent;
  std::vector<std::int32_t> map(static_cast<std::size_t>(spec.routed.experts), -1);
  for (std::size_t i = 0; i < rank.size(); ++i) {
    map[static_cast<std::size_t>(rank[i])] = static_cast<std::int32_t>(i);
    here.routed.push_back(weights.routed[static_cast<std::size_t>(rank[i])]);
    const MatrixFormats& formats = problem.spec().routed.formats_of(rank[i]);
    if (formats != spec.routed.formats) others.push_back({static_cast<std::int32_t>(i), formats});
  }
  spec.routed.others = others;
  const bool all_here = spec.routed.local_experts == spec.routed.experts;
  return Layer(choose({.layer = spec,
                       .device = testing::device_for(backend.name),
                       .tokens = {1},
                       .by_name = std::string(backend.name),
                       .calls = members(backend.can.calls)}),
               here,
               {.expert_map = all_here ? std::vector<std::int32_t>() : map, .executor = make_thread_team(2)});
}

Dispatch dispatch(const Problem& problem, const Rank& rank, bool batched, const Mine& mine,
                  const std::vector<float>& latent) {
  const int hidden = problem.spec().routed.hidden, top_k = problem.spec().routed.top_k;
  std::vector<std::vector<std::int32_t>> of(rank.size());
  for (std::int32_t slot = 0; slot < std::ssize(problem.call().ids); ++slot)
    if (const int e = mine(slot); e >= 0) of[static_cast<std::size_t>(e)].push_back(slot);
  Dispatch made;
  made.rank = rank;
  std::size_t most = 0;
  for (const auto& slots : of) most = std::max(most, slots.size());
  made.max_tokens = static_cast<int>(most) + 2;
  if (!batched) made.offsets.push_back(0);
  for (const auto& slots : of) {
    made.slots.insert(made.slots.end(), slots.begin(), slots.end());
    if (batched) {
      made.counts.push_back(static_cast<std::int32_t>(slots.size()));
      made.slots.resize(made.counts.size() * static_cast<std::size_t>(made.max_tokens), -1);
    } else {
      made.offsets.push_back(static_cast<std::int32_t>(made.slots.size()));
    }
  }
  if (!batched) made.slots.insert(made.slots.end(), 3, -1);  // rows after the last expert's
  made.hidden.assign(made.slots.size() * hidden, std::numeric_limits<float>::quiet_NaN());
  made.output.assign(made.hidden.size(), kUnwritten);
  made.weights.assign(made.slots.size(), 1.0f);
  const std::vector<std::int32_t>& adapters = problem.lora().ids;
  if (!adapters.empty()) made.adapter_ids.assign(made.slots.size(), 77);  // nobody may look
  for (std::size_t r = 0; r < made.slots.size(); ++r) {
    if (made.slots[r] < 0) continue;
    const std::ptrdiff_t token = made.slots[r] / top_k;
    const RowsView& rows = problem.call().hidden;
    const void* const row = latent.empty() ? static_cast<const void*>(rows.data + token * rows.row_stride)
                                           : latent.data() + token * hidden;
    std::memcpy(made.hidden.data() + r * hidden, row, hidden * sizeof(float));
    if (!adapters.empty()) made.adapter_ids[r] = adapters[static_cast<std::size_t>(made.slots[r] / top_k)];
    if (problem.spec().routed.weight_on_input)
      made.weights[r] = problem.call().weights[static_cast<std::size_t>(made.slots[r])];
  }
  return made;
}

namespace {

/// What an adapter has for the experts of a rank.
LoraAdapter part_of(const LoraAdapter& adapter, const Rank& rank) {
  LoraAdapter part{.owner = adapter.owner};
  for (const std::int32_t id : rank) part.routed.push_back(adapter.routed[static_cast<std::size_t>(id)]);
  return part;
}

/// The projections around latent experts, which any rank has; nothing around others.
class Projections {
 public:
  Projections(const Backend& backend, const Problem& problem, const LayerWeights& weights, const Rank& rank)
      : problem_(problem) {
    if (problem.spec().latent) layer_.emplace(layer_of(backend, problem, weights, rank));
    // Three tokens at a time.
    if (layer_) workspace_.resize(layer_->workspace_bytes(3));
  }

  std::vector<float> before() const {
    if (!layer_) return {};
    const RowsView& rows = problem_.call().hidden;
    std::vector<float> latent(static_cast<std::size_t>(rows.rows) * problem_.spec().routed.hidden);
    layer_->to_latent(rows, latent.data(), workspace_);
    return latent;
  }

  std::vector<float> behind(std::vector<float> sums) const {
    if (!layer_) return sums;
    const int tokens = problem_.call().hidden.rows;
    std::vector<float> out(static_cast<std::size_t>(tokens) * problem_.spec().hidden(), kUnwritten);
    layer_->from_latent(sums.data(), tokens, out.data(), workspace_);
    return out;
  }

 private:
  const Problem& problem_;
  std::optional<Layer> layer_;
  mutable std::vector<std::byte> workspace_;
};

}  // namespace

void run(const Layer& layer, const Problem& problem, Dispatch& rows, int at_once) {
  const int hidden = problem.spec().routed.hidden, count = static_cast<int>(rows.slots.size());
  std::vector<std::byte> workspace(layer.rows_workspace_bytes(at_once));
  std::vector<LoraAdapter> of_rank;
  std::vector<const LoraAdapter*> adapters;
  if (!rows.adapter_ids.empty())
    for (const LoraAdapter& adapter : problem.lora().adapters) of_rank.push_back(part_of(adapter, rows.rank));
  for (const LoraAdapter& adapter : of_rank) adapters.push_back(&adapter);
  layer.run_rows({.hidden = {reinterpret_cast<const std::byte*>(rows.hidden.data()), DType::f32, count,
                             hidden, std::ptrdiff_t{hidden} * 4},
                  .offsets = rows.offsets,
                  .counts = rows.counts,
                  .max_tokens = rows.counts.empty() ? 0 : rows.max_tokens,
                  .weights = rows.weights.data(),
                  .adapters = adapters,
                  .adapter_ids = rows.adapter_ids,
                  .output = rows.output.data(),
                  .workspace = workspace});
}

std::vector<float> over_ranks(const Backend& backend, const Problem& problem, const LayerWeights& weights,
                              const std::vector<Rank>& ranks, bool batched, int at_once) {
  const int hidden = problem.spec().routed.hidden, top_k = problem.spec().routed.top_k;
  const auto& ids = problem.call().ids;
  std::vector<float> rows;
  std::vector<std::int32_t> row_of_slot(ids.size(), -1);
  const Projections around(backend, problem, weights, ranks.front());
  const std::vector<float> latent = around.before();
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const Layer layer = layer_of(backend, problem, weights, ranks[r]);
    Dispatch made = dispatch(
        problem, ranks[r], batched,
        [&](std::int32_t slot) {
          std::vector<std::size_t> holders;
          for (std::size_t other = 0; other < ranks.size(); ++other)
            if (std::ranges::find(ranks[other], ids[static_cast<std::size_t>(slot)]) != ranks[other].end())
              holders.push_back(other);
          if (holders.empty() || holders[static_cast<std::size_t>(slot) % holders.size()] != r) return -1;
          return static_cast<int>(std::ranges::find(ranks[r], ids[static_cast<std::size_t>(slot)]) -
                                  ranks[r].begin());
        },
        latent);
    run(layer, problem, made, at_once);
    for (std::size_t i = 0; i < made.slots.size(); ++i) {
      const float* row = made.output.data() + i * hidden;
      if (made.slots[i] >= 0)
        row_of_slot[static_cast<std::size_t>(made.slots[i])] =
            static_cast<std::int32_t>(rows.size()) / hidden + static_cast<std::int32_t>(i);
      else
        EXPECT_EQ(std::count(row, row + hidden, kUnwritten), hidden) << "a row of nobody was written";
    }
    rows.insert(rows.end(), made.output.begin(), made.output.end());
  }
  std::vector<float> out(static_cast<std::size_t>(problem.call().hidden.rows) * hidden, kUnwritten);
  Routing routing = problem.call().routing(top_k);
  if (problem.spec().routed.weight_on_input) routing.weights = nullptr;
  combine(routing, row_of_slot, rows.data(), hidden, out.data());
  return around.behind(std::move(out));
}

namespace {

/// Equal as numbers: a sum of one term from 0 may differ from the term in the sign of a zero.
::testing::AssertionResult same(const std::vector<float>& want, const std::vector<float>& got) {
  for (std::size_t i = 0; i < want.size(); ++i)
    if (got[i] != want[i])
      return ::testing::AssertionFailure() << "element " << i << ": got " << got[i] << ", want " << want[i];
  return ::testing::AssertionSuccess();
}

}  // namespace

::testing::AssertionResult is_right(const Backend& backend, const Problem& problem,
                                    const std::vector<float>& flat, const std::vector<float>& got) {
  const ::testing::AssertionResult bits = same(flat, got);
  if (bits || (testing::is_batch_invariant(backend) && !testing::is_reference(backend))) return bits;
  const testing::Closeness close = testing::closeness({.got = got,
                                                       .want = problem.definition().experts_out,
                                                       .magnitude = problem.definition().experts_magnitude,
                                                       .width = problem.spec().hidden()});
  return (close.ok() ? ::testing::AssertionSuccess() : ::testing::AssertionFailure()) << close.str();
}

}  // namespace sluice::conformance
