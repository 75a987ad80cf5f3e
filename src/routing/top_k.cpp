// SPDX-License-Identifier: Apache-2.0
// Scores to ids and weights, a token at a time:
//   score  ->  + selection bias  ->  groups kept  ->  top_k  ->  weight = score  ->  / sum  ->  * scale  ->
//   * expert_scale
// NaN is unselectable from the first step on, so no sum and no comparison ever sees one.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "core/error.h"
#include "routing/scores.h"

namespace sluice {

template <>
std::span<const std::string_view> Score::all() {
  return Scores::kNames;
}

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// exp(x - largest) over their sum, in place; NaN is left alone.
void softmax(std::span<float> values) {
  float largest = -kInfinity;
  for (const float x : values)
    if (x > largest) largest = x;
  float sum = 0;
  for (float& x : values) {
    x = score::softmax_term(x, largest);
    if (!std::isnan(x)) sum += x;
  }
  if (sum > 0)
    for (float& x : values) x /= sum;
}

/// Scratch of one token.
struct Scratch {
  std::span<float> scores;      // [experts]
  std::span<float> selection;   // [experts]
  std::span<std::int32_t> ids;  // [experts], candidates
  std::span<float> groups;      // [groups]
};

struct Selected {
  std::span<std::int32_t> ids;
  std::span<float> weights;
};

void check(bool ok, std::string_view what, std::int64_t wanted, std::int64_t given) {
  require(ok, ErrorKind::invalid_argument, [&] {
    return ErrorInfo{.code = "bad_routing_size",
                     .what = fmt::format("routing: {} is {}, expected {}", what, given, wanted)};
  });
}

void check_spec(const RouterSpec& spec) {
  const auto fits = [&](bool ok, std::string_view why) {
    require(ok, ErrorKind::invalid_argument, [&] {
      return ErrorInfo{.code = "bad_router",
                       .what = fmt::format("a router of {} experts, top {}, keeping {} of {} groups",
                                           spec.experts, spec.top_k, spec.groups_kept, spec.groups),
                       .why = std::string(why)};
    });
  };
  fits(spec.experts > 0, "there must be an expert");
  fits(spec.top_k > 0 && spec.top_k <= spec.experts, "top_k lies between 1 and the number of experts");
  fits(spec.groups > 0 && spec.experts % spec.groups == 0, "groups divide the experts evenly");
  fits(spec.groups_kept > 0 && spec.groups_kept <= spec.groups, "between 1 and all groups are kept");
}

void check_sizes(const RouterSpec& spec, const RouterInput& input, const Selected& out) {
  const auto exactly = [](std::string_view what, std::size_t given, std::int64_t wanted) {
    check(static_cast<std::int64_t>(given) == wanted, what, wanted, static_cast<std::int64_t>(given));
  };
  check(input.tokens >= 0, "the number of tokens", 0, input.tokens);
  const std::int64_t tokens = input.tokens;
  exactly("the number of logits", input.logits.size(), tokens * spec.experts);
  exactly("the size of the selection bias", input.selection_bias.size(),
          spec.selection_bias ? spec.experts : 0);
  exactly("the size of the expert scale", input.expert_scale.size(), spec.expert_scale ? spec.experts : 0);
  exactly("the number of ids", out.ids.size(), tokens * spec.top_k);
  exactly("the number of weights", out.weights.size(), tokens * spec.top_k);
  if (spec.by_token_id) exactly("the number of token ids", input.token_ids.size(), tokens);
}

void check_token_ids(const RouterSpec& spec, const RouterInput& input) {
  if (!spec.by_token_id) return;
  const auto vocabulary = static_cast<std::int64_t>(input.table.size()) / spec.top_k;
  for (const std::int64_t id : input.token_ids)
    require(id >= 0 && id < vocabulary, ErrorKind::invalid_argument, [&] {
      return ErrorInfo{.code = "bad_token_id",
                       .what = fmt::format("token id {} is outside the routing table", id),
                       .why = fmt::format("the table has {} rows of {} experts", vocabulary, spec.top_k)};
    });
}

template <class T>
std::span<T> carve(void*& at, int count) {
  T* const first = static_cast<T*>(at);
  at = first + count;
  return {first, static_cast<std::size_t>(count)};
}

Scratch make_scratch(const RouterSpec& spec, std::span<std::byte> bytes) {
  const std::size_t wanted = top_k_scratch_bytes(spec);
  check(bytes.size() >= wanted, "the scratch in bytes", static_cast<std::int64_t>(wanted),
        static_cast<std::int64_t>(bytes.size()));
  void* at = bytes.data();
  std::size_t room = bytes.size();
  std::align(alignof(float), wanted - alignof(float), at, room);
  Scratch scratch;
  scratch.scores = carve<float>(at, spec.experts);
  scratch.selection = carve<float>(at, spec.experts);
  scratch.ids = carve<std::int32_t>(at, spec.experts);
  scratch.groups = carve<float>(at, spec.groups);
  return scratch;
}

/// Makes the experts of all groups but the best `groups_kept` unselectable.
void keep_groups(const RouterSpec& spec, const Scratch& scratch) {
  const auto size = static_cast<std::size_t>(spec.experts / spec.groups);
  const auto members = [&](std::size_t g) { return scratch.selection.subspan(g * size, size); };
  const std::span<std::int32_t> order = scratch.ids.first(scratch.groups.size());
  for (std::size_t g = 0; g < scratch.groups.size(); ++g) {
    const std::span<const float> own = members(g);
    const float score = score::of_group(spec.group_score, own.data(), static_cast<int>(own.size()));
    scratch.groups[g] = std::isnan(score) ? -kInfinity : score;
    order[g] = static_cast<std::int32_t>(g);
  }
  const auto better = [&](std::int32_t a, std::int32_t b) {
    const float x = scratch.groups[static_cast<std::size_t>(a)],
                y = scratch.groups[static_cast<std::size_t>(b)];
    return x > y || (x == y && a < b);
  };
  std::partial_sort(order.begin(), order.begin() + spec.groups_kept, order.end(), better);
  for (const std::int32_t g : order.subspan(static_cast<std::size_t>(spec.groups_kept)))
    for (float& s : members(static_cast<std::size_t>(g))) s = std::nanf("");
}

/// Ids by falling selection score, then -1.
void select(const Scratch& scratch, std::span<std::int32_t> ids) {
  std::size_t candidates = 0;
  for (std::size_t e = 0; e < scratch.selection.size(); ++e)
    if (!std::isnan(scratch.selection[e])) scratch.ids[candidates++] = static_cast<std::int32_t>(e);
  const auto better = [&](std::int32_t a, std::int32_t b) {
    const float x = scratch.selection[static_cast<std::size_t>(a)];
    const float y = scratch.selection[static_cast<std::size_t>(b)];
    return x > y || (x == y && a < b);
  };
  const std::size_t count = std::min(ids.size(), candidates);
  const auto first = scratch.ids.begin();
  std::partial_sort(first, first + static_cast<std::ptrdiff_t>(count),
                    first + static_cast<std::ptrdiff_t>(candidates), better);
  std::copy_n(first, count, ids.begin());
  std::fill(ids.begin() + static_cast<std::ptrdiff_t>(count), ids.end(), -1);
}

/// Divides by the sum. Zeros stay zeros; infinite weights share equally.
void renormalise(std::span<float> weights) {
  float sum = 0;
  for (const float w : weights) sum += w;
  if (std::isinf(sum)) {
    sum = 0;
    for (float& w : weights) {
      w = std::isinf(w) ? 1.0f : 0.0f;
      sum += w;
    }
  }
  if (sum == 0) return;
  for (float& w : weights) w /= sum;
}

/// Turns the scores of the selected ids into their weights. Ids that are no experts, or have no score, become
/// -1.
template <class S>
void weigh(const RouterSpec& spec, std::span<const float> scores, std::span<const float> expert_scale,
           Selected out) {
  // The real ones first, so that the sums run over a dense range; then back to their places.
  std::size_t count = 0;
  for (std::int32_t& id : out.ids) {
    const bool real = id >= 0 && id < spec.experts && !std::isnan(scores[static_cast<std::size_t>(id)]);
    if (real)
      out.weights[count++] = scores[static_cast<std::size_t>(id)];
    else
      id = -1;
  }
  const std::span<float> weights = out.weights.first(count);
  for (float& w : weights) w = S::weight(w);
  if (S::softmax_of_selected) softmax(weights);
  if (spec.renormalise) renormalise(weights);
  for (float& w : weights) w *= spec.scale;
  for (std::size_t i = out.ids.size(); i-- > 0;)
    out.weights[i] = out.ids[i] < 0 ? 0.0f : out.weights[--count];
  if (expert_scale.empty()) return;
  for (std::size_t i = 0; i < out.ids.size(); ++i)
    if (out.ids[i] >= 0) out.weights[i] *= expert_scale[static_cast<std::size_t>(out.ids[i])];
}

template <class S>
void route_token(const RouterSpec& spec, const RouterInput& input, std::size_t token, const Scratch& scratch,
                 Selected out) {
  const auto experts = static_cast<std::size_t>(spec.experts);
  const std::span<const float> logits = input.logits.subspan(token * experts, experts);
  std::ranges::transform(logits, scratch.scores.begin(), S::score);
  if (S::softmax_of_all) softmax(scratch.scores);
  if (spec.by_token_id) {
    const auto row = static_cast<std::size_t>(input.token_ids[token]) * out.ids.size();
    std::copy_n(input.table.begin() + static_cast<std::ptrdiff_t>(row), out.ids.size(), out.ids.begin());
  } else {
    for (std::size_t e = 0; e < experts; ++e)
      scratch.selection[e] = scratch.scores[e] + (spec.selection_bias ? input.selection_bias[e] : 0.0f);
    if (spec.groups_kept < spec.groups) keep_groups(spec, scratch);
    select(scratch, out.ids);
  }
  weigh<S>(spec, scratch.scores, input.expert_scale, out);
}

}  // namespace

std::size_t top_k_scratch_bytes(const RouterSpec& spec) {
  const std::size_t numbers =
      3 * static_cast<std::size_t>(spec.experts) + static_cast<std::size_t>(spec.groups);
  return numbers * sizeof(float) + alignof(float);  // one more, to align
}

void top_k(const RouterSpec& spec, const RouterInput& input, std::span<std::int32_t> ids,
           std::span<float> weights, std::span<std::byte> scratch) {
  check_spec(spec);
  check_sizes(spec, input, {ids, weights});
  check_token_ids(spec, input);
  const Scratch parts = make_scratch(spec, scratch);
  const auto k = static_cast<std::size_t>(spec.top_k);
  Scores::visit(spec.score, [&]<class S>() {
    for (std::size_t t = 0; t < static_cast<std::size_t>(input.tokens); ++t)
      route_token<S>(spec, input, t, parts, {ids.subspan(t * k, k), weights.subspan(t * k, k)});
  });
}

}  // namespace sluice
