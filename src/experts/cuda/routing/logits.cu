// SPDX-License-Identifier: Apache-2.0
// The router's linear layer in float32. An element is summed by sixteen lanes in the order of `dot`
// (engine/router.h): each lane every sixteenth product, nothing fused, and then the sums pairwise. So it has
// the processor's bits, and depends neither on the other rows nor on how many of each a thread computes.
#include <cuda_runtime.h>

#include "experts/cuda/routing/launch.h"
#include "experts/cuda/routing/route.h"
#include "format/bf16.h"
#include "format/f16.h"

namespace sluice::cuda {
namespace {

constexpr int kLanes = 16, kTeams = 4;  // lanes an element, and so many of these teams a block
/// With more rows than that, rows and outputs share loads; fewer should be many blocks.
constexpr int kFewRows = 16;

/// What a team computes, and how many columns a lane loads while it adds as many before them: a load takes
/// hundreds of clocks, and an addition four.
struct FewRows {
  static constexpr int rows = 1, outputs = 1, columns = 16;
  static constexpr int teams_of_rows = 1, teams_of_outputs = kTeams;
};
struct ManyRows {
  static constexpr int rows = 4, outputs = 4, columns = 4;
  static constexpr int teams_of_rows = 1, teams_of_outputs = kTeams;
};
struct OneOutput {
  static constexpr int rows = 1, outputs = 1, columns = 16;
  static constexpr int teams_of_rows = kTeams, teams_of_outputs = 1;
};

template <DType kType>
__device__ float element(const std::byte* row, int column) {
  if constexpr (kType == DType::f32) {
    return reinterpret_cast<const float*>(row)[column];
  } else {
    const std::uint16_t bits = reinterpret_cast<const std::uint16_t*>(row)[column];
    return kType == DType::bf16 ? format::bf16_to_float(bits) : format::f16_to_float(bits);
  }
}

/// Of a team's lanes, in every lane.
__device__ float add_lanes(float sum) {
  for (int half = kLanes / 2; half > 0; half /= 2) sum += __shfl_xor_sync(~0u, sum, half);
  return sum;
}

/// A lane's columns of a tile's rows and outputs.
template <class Tile>
struct Columns {
  float x[Tile::columns][Tile::rows], w[Tile::columns][Tile::outputs];
};

/// A team's rows and outputs. What is beyond the last is the last once more, and is not written.
template <DType kType, class Tile>
struct Team {
  int first_row, first_output, width;
  const std::byte* rows[Tile::rows];
  const float* weights[Tile::outputs];

  __device__ explicit Team(const Logits& l) : width(l.rows.width) {
    const int team = static_cast<int>(threadIdx.y);
    first_row =
        (static_cast<int>(blockIdx.x) * Tile::teams_of_rows + team / Tile::teams_of_outputs) * Tile::rows;
    first_output = (static_cast<int>(blockIdx.y) * Tile::teams_of_outputs + team % Tile::teams_of_outputs) *
                   Tile::outputs;
    for (int r = 0; r < Tile::rows; ++r)
      rows[r] = l.rows.data + std::ptrdiff_t{min(first_row + r, l.rows.rows - 1)} * l.rows.row_stride;
    for (int o = 0; o < Tile::outputs; ++o)
      weights[o] = l.weight + std::ptrdiff_t{min(first_output + o, l.outputs - 1)} * width;
  }

  /// Columns `first`, first + 16, ...; beyond the last column that once more.
  __device__ Columns<Tile> load(int first) const {
    Columns<Tile> columns;
#pragma unroll
    for (int c = 0; c < Tile::columns; ++c) {
      const int k = min(first + c * kLanes, width - 1);
      for (int r = 0; r < Tile::rows; ++r) columns.x[c][r] = element<kType>(rows[r], k);
      for (int o = 0; o < Tile::outputs; ++o) columns.w[c][o] = __ldg(weights[o] + k);
    }
    return columns;
  }
};

template <class Tile>
__device__ void add(const Columns<Tile>& columns, int left, float (&sums)[Tile::rows][Tile::outputs]) {
#pragma unroll
  for (int c = 0; c < Tile::columns; ++c) {
    const bool inside = c * kLanes < left;
    for (int r = 0; r < Tile::rows; ++r)
      for (int o = 0; o < Tile::outputs; ++o) {
        const float sum = __fadd_rn(sums[r][o], __fmul_rn(columns.x[c][r], columns.w[c][o]));
        sums[r][o] = inside ? sum : sums[r][o];
      }
  }
}

template <DType kType, class Tile>
__global__ void __launch_bounds__(kLanes* kTeams) multiply(const __grid_constant__ Logits l) {
  const int lane = static_cast<int>(threadIdx.x);
  const Team<kType, Tile> team(l);
  float sums[Tile::rows][Tile::outputs] = {};
  Columns<Tile> now = team.load(lane);
  for (int first = lane; first < team.width;) {
    const int next = first + kLanes * Tile::columns;
    const Columns<Tile> later = team.load(next);
    add<Tile>(now, team.width - first, sums);
    now = later;
    first = next;
  }
  for (int r = 0; r < Tile::rows; ++r)
    for (int o = 0; o < Tile::outputs; ++o) {
      const int row = team.first_row + r, output = team.first_output + o;
      const float sum = add_lanes(sums[r][o]);
      if (lane != 0 || row >= l.rows.rows || output >= l.outputs) continue;
      l.out[std::ptrdiff_t{row} * l.outputs + output] = l.bias == nullptr ? sum : sum + l.bias[output];
    }
}

template <DType kType, class Tile>
cudaError_t start(const Logits& l, cudaStream_t stream) {
  const auto blocks = [](int count, int of) { return static_cast<unsigned>((count + of - 1) / of); };
  return launch(multiply<kType, Tile>, l,
                dim3(blocks(l.rows.rows, Tile::rows * Tile::teams_of_rows),
                     blocks(l.outputs, Tile::outputs * Tile::teams_of_outputs)),
                dim3(kLanes, kTeams), stream);
}

template <DType kType>
cudaError_t start_for(const Logits& l, cudaStream_t stream) {
  if (l.outputs == 1) return start<kType, OneOutput>(l, stream);
  return l.rows.rows <= kFewRows ? start<kType, FewRows>(l, stream) : start<kType, ManyRows>(l, stream);
}

}  // namespace

cudaError_t logits(const Logits& logits, cudaStream_t stream) {
  switch (logits.rows.dtype) {
    case DType::bf16:
      return start_for<DType::bf16>(logits, stream);
    case DType::f16:
      return start_for<DType::f16>(logits, stream);
    default:
      return start_for<DType::f32>(logits, stream);
  }
}

}  // namespace sluice::cuda
