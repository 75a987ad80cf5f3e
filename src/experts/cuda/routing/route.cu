// SPDX-License-Identifier: Apache-2.0
// sluice::top_k (routing/top_k.cpp), a warp a token. Expert e is lane e % 32's, whose numbers lie in
// registers. The tie and NaN rules are those of top_k: NaN is never selected and enters no sum, and
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

/// A lane's experts are lane, lane + 32, ...; their numbers lie in registers.
template <int kPerLane>
struct Own {
  float of[kPerLane];

  /// Calls visit(j, expert).
  template <class Visit>
  static __device__ void each(int experts, int lane, Visit visit) {
#pragma unroll
    for (int j = 0; j < kPerLane; ++j)
      if (const int e = lane + j * kWarp; e < experts) visit(j, e);
  }
};

/// The scores of all experts, also in shared memory, for whoever asks for one.
template <class S, int kPerLane>
__device__ void score_experts(int experts, int lane, Own<kPerLane>& own, float* scores) {
  float largest = -score::infinity();
  own.each(experts, lane, [&](int j, int e) {
    own.of[j] = S::score(own.of[j]);
    if (own.of[j] > largest) largest = own.of[j];
  });
  if constexpr (S::softmax_of_all) {
    largest = largest_of_warp(largest);
    own.each(experts, lane, [&](int j, int e) {
      own.of[j] = score::softmax_term(own.of[j], largest);
      scores[e] = score::is_nan(own.of[j]) ? 0.0f : own.of[j];
    });
    __syncwarp();
    float sum = 0;
#pragma unroll 8
    for (int e = 0; e < experts; ++e) sum += scores[e];
    __syncwarp();
    if (sum > 0) own.each(experts, lane, [&](int j, int) { own.of[j] /= sum; });
  }
  own.each(experts, lane, [&](int j, int e) { scores[e] = own.of[j]; });
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

/// The id that comes `lane`-th by falling selection score, -1 where there is none.
template <int kPerLane>
__device__ int select(const RouterSpec& spec, const Own<kPerLane>& selection, int lane) {
  std::uint32_t keys[kPerLane] = {};
  selection.each(spec.experts, lane, [&](int j, int) { keys[j] = key_of(selection.of[j]); });
  int mine = -1;
  for (int k = 0; k < spec.top_k; ++k) {
    std::uint32_t best = keys[0];
#pragma unroll
    for (int j = 1; j < kPerLane; ++j) best = max(best, keys[j]);
    best = __reduce_max_sync(kAll, best);
    if (best == 0) break;
    int id = INT_MAX;
#pragma unroll
    for (int j = kPerLane; j-- > 0;)
      if (keys[j] == best) id = lane + j * kWarp;
    id = __reduce_min_sync(kAll, id);
    if (lane == k) mine = id;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j)
      if (lane + j * kWarp == id) keys[j] = 0;
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

/// Selects by scores, biases and groups.
template <int kPerLane>
__device__ int choose(const Route& r, Own<kPerLane> own, const Own<kPerLane>& bias, int lane,
                      const Scratch& at) {
  const RouterSpec& spec = r.spec;
  own.each(spec.experts, lane, [&](int j, int) { own.of[j] += bias.of[j]; });
  if (spec.groups_kept < spec.groups) {
    own.each(spec.experts, lane, [&](int j, int e) { at.selection[e] = own.of[j]; });
    keep_groups(spec, at, lane);
    own.each(spec.experts, lane, [&](int j, int e) { own.of[j] = at.selection[e]; });
  }
  return select(spec, own, lane);
}

template <class S, int kPerLane>
__global__ void __launch_bounds__(kMostWarps* kWarp) route_tokens(const __grid_constant__ Route r) {
  extern __shared__ float memory[];
  const RouterSpec& spec = r.spec;
  const int lane = static_cast<int>(threadIdx.x);
  const std::int64_t token = std::int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (token >= r.tokens) return;
  const Scratch at = scratch_at(spec, memory + threadIdx.y * scratch_numbers(spec));
  const float* const logits = r.logits + token * spec.experts;
  Own<kPerLane> own, bias;
  own.each(spec.experts, lane, [&](int j, int e) {
    own.of[j] = logits[e];
    bias.of[j] = spec.selection_bias ? r.selection_bias[e] : 0.0f;
  });
  score_experts<S>(spec.experts, lane, own, at.scores);
  int id = spec.by_token_id ? look_up(r, token, lane) : choose(r, own, bias, lane, at);
  __syncwarp();
  const float weight = weigh<S>(r, at.scores, id);
  if (lane >= spec.top_k) return;
  r.ids[token * spec.top_k + lane] = id;
  r.weights[token * spec.top_k + lane] = weight;
}

/// For small routers, and for all.
constexpr int kFewPerLane = 8, kMostPerLane = kMostRoutedExperts / kWarp;

}  // namespace

cudaError_t route(const Route& route, cudaStream_t stream) {
  const RouterSpec& spec = route.spec;
  if (spec.experts > kMostRoutedExperts || spec.top_k > kMostTopK) return cudaErrorInvalidValue;
  const std::size_t bytes = static_cast<std::size_t>(scratch_numbers(spec)) * sizeof(float);
  const auto warps = static_cast<unsigned>(std::clamp<std::size_t>(kMostShared / bytes, 1, kMostWarps));
  const dim3 grid((static_cast<unsigned>(route.tokens) + warps - 1) / warps);
  return Scores::visit(spec.score, [&]<class S>() {
    const auto kernel =
        spec.experts <= kFewPerLane * kWarp ? route_tokens<S, kFewPerLane> : route_tokens<S, kMostPerLane>;
    return launch(kernel, route, grid, dim3(kWarp, warps), stream, warps * bytes);
  });
}

}  // namespace sluice::cuda
