// SPDX-License-Identifier: Apache-2.0
// sluice::top_k (routing/top_k.cpp), a warp a token. Scores and selection scores lie in shared memory, expert
// e with lane e % 32. The tie and NaN rules are those of top_k: NaN is never selected and enters no sum, and
// among equal scores the lowest id comes first.
//
// Sums of scores run one by one, as on the processor, in every lane at once. Where the processor leaves a NaN
// out, zero is added, which changes no bit: scores that are summed are not negative.
#include <cuda_runtime.h>

#include <algorithm>
#include <climits>

#include "experts/cuda/routing/launch.h"
#include "experts/cuda/routing/route.h"
#include "routing/scores.h"

namespace sluice::cuda {
namespace {

constexpr int kWarp = 32, kMostWarps = 4;
constexpr unsigned kAll = ~0u;
constexpr std::size_t kMostShared = 48 * 1024;

/// A token's place in shared memory.
struct Scratch {
  float* scores;     // [experts]
  float* selection;  // [experts]
  float* groups;     // [groups]
  int* ranks;        // [groups]
};

constexpr int scratch_numbers(const RouterSpec& spec) { return 2 * spec.experts + 2 * spec.groups; }

__device__ Scratch scratch_at(const RouterSpec& spec, float* memory) {
  float* const groups = memory + 2 * spec.experts;
  return {memory, memory + spec.experts, groups, reinterpret_cast<int*>(groups + spec.groups)};
}

__device__ float largest_of_warp(float x) {
  for (int step = kWarp / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(kAll, x, step));
  return x;
}

/// Unlike the numbers themselves these order -infinity above "not selectable", which is 0, and take -0 for 0.
__device__ std::uint32_t key_of(float selection) {
  if (score::is_nan(selection)) return 0;
  const std::uint32_t bits = __float_as_uint(selection + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/// The scores of all experts.
template <class S>
__device__ void score_experts(const Route& r, const float* logits, int lane, float* scores) {
  const int experts = r.spec.experts;
  float largest = -score::infinity();
  for (int e = lane; e < experts; e += kWarp) {
    scores[e] = S::score(logits[e]);
    if (scores[e] > largest) largest = scores[e];
  }
  if constexpr (S::softmax_of_all) {
    largest = largest_of_warp(largest);
    for (int e = lane; e < experts; e += kWarp) scores[e] = score::softmax_term(scores[e], largest);
    __syncwarp();
    float sum = 0;
#pragma unroll 8
    for (int e = 0; e < experts; ++e) sum += score::is_nan(scores[e]) ? 0.0f : scores[e];
    __syncwarp();
    if (sum > 0)
      for (int e = lane; e < experts; e += kWarp) scores[e] /= sum;
  }
}

/// Makes the experts of all groups but the best `groups_kept` unselectable.
__device__ void keep_groups(const RouterSpec& spec, const Scratch& at, int lane) {
  const int size = spec.experts / spec.groups;
  __syncwarp();
  for (int g = lane; g < spec.groups; g += kWarp) {
    const float score = score::of_group(spec.group_score, at.selection + g * size, size);
    at.groups[g] = score::is_nan(score) ? -score::infinity() : score;
  }
  __syncwarp();
  for (int g = lane; g < spec.groups; g += kWarp) {
    int before = 0;
    for (int other = 0; other < spec.groups; ++other) {
      const float x = at.groups[other], own = at.groups[g];
      before += x > own || (x == own && other < g) ? 1 : 0;
    }
    at.ranks[g] = before;
  }
  __syncwarp();
  for (int e = lane; e < spec.experts; e += kWarp)
    if (at.ranks[e / size] >= spec.groups_kept) at.selection[e] = score::not_a_number();
}

struct Candidate {
  std::uint32_t key;
  int id;
};

/// The best of a lane's own experts.
__device__ Candidate best_of_lane(const float* selection, int experts, int lane) {
  Candidate best{0, INT_MAX};
  for (int e = lane; e < experts; e += kWarp)
    if (const std::uint32_t key = key_of(selection[e]); key > best.key) best = {key, e};
  return best;
}

/// The id that comes `lane`-th by falling selection score, -1 where there is none.
__device__ int select(const RouterSpec& spec, float* selection, int lane) {
  int mine = -1;
  Candidate own = best_of_lane(selection, spec.experts, lane);
  for (int k = 0; k < spec.top_k; ++k) {
    const std::uint32_t best = __reduce_max_sync(kAll, own.key);
    if (best == 0) break;
    const int id = __reduce_min_sync(kAll, own.key == best ? own.id : INT_MAX);
    if (lane == k) mine = id;
    if (lane != id % kWarp) continue;
    selection[id] = score::not_a_number();
    own = best_of_lane(selection, spec.experts, lane);
  }
  return mine;
}

/// The id that comes `lane`-th in the token's row of the table.
__device__ int look_up(const Route& r, std::int64_t token, int lane) {
  const std::int64_t id = r.token_ids[token];
  if (lane >= r.spec.top_k || id < 0 || id >= r.vocabulary) return -1;
  return r.table[id * r.spec.top_k + lane];
}

/// Of the lanes' numbers, which are zero beyond top_k, in order.
__device__ float sum_of_lanes(float x, int top_k) {
  float sum = 0;
  for (int k = 0; k < top_k; ++k) sum += __shfl_sync(kAll, x, k);
  return sum;
}

/// A lane's weight, of those that are `real`; zero for the others.
__device__ float renormalise(float weight, int top_k) {
  float sum = sum_of_lanes(weight, top_k);
  if (isinf(sum)) {
    weight = isinf(weight) ? 1.0f : 0.0f;
    sum = sum_of_lanes(weight, top_k);
  }
  return sum == 0 ? weight : weight / sum;
}

/// The weight of the lane's id, which becomes -1 where that is no expert or has no score.
template <class S>
__device__ float weigh(const Route& r, const float* scores, int& id) {
  const bool real = id >= 0 && id < r.spec.experts && !score::is_nan(scores[id]);
  if (!real) id = -1;
  float weight = real ? S::weight(scores[id]) : 0.0f;
  if constexpr (S::softmax_of_selected) {
    const float largest = largest_of_warp(real ? weight : -score::infinity());
    weight = real ? score::softmax_term(weight, largest) : 0.0f;
    if (const float sum = sum_of_lanes(weight, r.spec.top_k); sum > 0) weight /= sum;
  }
  if (r.spec.renormalise) weight = renormalise(weight, r.spec.top_k);
  if (!real) return 0.0f;
  weight *= r.spec.scale;
  return r.spec.expert_scale ? weight * r.expert_scale[id] : weight;
}

__global__ void __launch_bounds__(kMostWarps* kWarp) route_tokens(const __grid_constant__ Route r) {
  extern __shared__ float memory[];
  const RouterSpec& spec = r.spec;
  const int lane = static_cast<int>(threadIdx.x);
  const std::int64_t token = std::int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (token >= r.tokens) return;
  const Scratch at = scratch_at(spec, memory + threadIdx.y * scratch_numbers(spec));
  const float* const logits = r.logits + token * spec.experts;
  Scores::visit(spec.score, [&]<class S>() { score_experts<S>(r, logits, lane, at.scores); });
  int id = -1;
  if (spec.by_token_id) {
    id = look_up(r, token, lane);
  } else {
    for (int e = lane; e < spec.experts; e += kWarp)
      at.selection[e] = at.scores[e] + (spec.selection_bias ? r.selection_bias[e] : 0.0f);
    if (spec.groups_kept < spec.groups) keep_groups(spec, at, lane);
    id = select(spec, at.selection, lane);
  }
  __syncwarp();
  const float weight = Scores::visit(spec.score, [&]<class S>() { return weigh<S>(r, at.scores, id); });
  if (lane >= spec.top_k) return;
  r.ids[token * spec.top_k + lane] = id;
  r.weights[token * spec.top_k + lane] = weight;
}

}  // namespace

cudaError_t route(const Route& route, cudaStream_t stream) {
  if (route.spec.experts > kMostRoutedExperts || route.spec.top_k > kMostTopK) return cudaErrorInvalidValue;
  const std::size_t bytes = static_cast<std::size_t>(scratch_numbers(route.spec)) * sizeof(float);
  const auto warps = static_cast<unsigned>(std::clamp<std::size_t>(kMostShared / bytes, 1, kMostWarps));
  const dim3 grid((static_cast<unsigned>(route.tokens) + warps - 1) / warps);
  return launch(route_tokens, route, grid, dim3(kWarp, warps), stream, warps * bytes);
}

}  // namespace sluice::cuda
