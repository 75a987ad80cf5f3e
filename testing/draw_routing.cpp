// SPDX-License-Identifier: Apache-2.0
#include "testing/draw_routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "testing/draw.h"

namespace sluice::testing {

std::vector<float> draw_logits(int tokens, int experts, Popularity popularity, std::uint64_t seed) {
  Draw draw(seed);
  std::vector<double> share(static_cast<std::size_t>(experts), 0.0);
  if (popularity == Popularity::zipf)
    for (std::size_t e = 0; e < share.size(); ++e) share[e] = -std::log(static_cast<double>(e + 1));
  for (std::size_t e = share.size(); e > 1; --e)
    std::swap(share[e - 1], share[static_cast<std::size_t>(draw.below(static_cast<std::int64_t>(e)))]);
  std::vector<float> logits;
  logits.reserve(static_cast<std::size_t>(tokens) * share.size());
  // Of 1 - u, which is below 1, so that the outer logarithm is finite.
  const auto gumbel = [&] { return -std::log(-std::log(1 - draw.uniform() + 0x1p-60)); };
  for (int t = 0; t < tokens; ++t)
    for (const double s : share) logits.push_back(static_cast<float>(s + gumbel()));
  return logits;
}

std::vector<std::int32_t> largest(const std::vector<float>& logits, int experts, int top_k) {
  const auto width = static_cast<std::size_t>(experts);
  std::vector<std::int32_t> order(width), ids;
  for (std::size_t first = 0; first < logits.size(); first += width) {
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + top_k, order.end(), [&](std::int32_t a, std::int32_t b) {
      return logits[first + static_cast<std::size_t>(a)] > logits[first + static_cast<std::size_t>(b)];
    });
    ids.insert(ids.end(), order.begin(), order.begin() + top_k);
  }
  return ids;
}

int distinct_experts(const std::vector<std::int32_t>& ids, int experts) {
  std::vector<bool> hit(static_cast<std::size_t>(experts));
  for (const std::int32_t id : ids)
    if (id >= 0 && id < experts) hit[static_cast<std::size_t>(id)] = true;
  return static_cast<int>(std::count(hit.begin(), hit.end(), true));
}

}  // namespace sluice::testing
