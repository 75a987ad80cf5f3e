// SPDX-License-Identifier: Apache-2.0
// The border between the host and the kernels: what a product reads, and how it is started. Plain pointers
// into the card's memory.
//
// Two kernels compute products here, and a third for many tokens on SM90 (warpgroup.h). The narrow one has up
// to 16 tokens a tile, for batches that wait for memory; the wide one has 32 to 128. All sum in the same
// order, so a token gets the same bits from either: the sum of 64 columns of one term from the tensor core,
// the terms of those columns from the last to the first, and then 64 columns after another; of 32 or 16
// where integers have groups of so many.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "core/hd.h"
#include "experts/cuda/common/layout.h"
#include "experts/cuda/common/terms.h"
#include "experts/cuda/mma/start.h"
#include "sluice/spec.h"

namespace sluice::cuda {

/// Columns of the products that a thread block computes: neighbouring positions of one expert.
struct Tile {
  std::int32_t expert, first, count;
};

/// In a block of 128 the first eight columns of every lane of a quad are side by side, and then the next
/// eight: what a quad reads at once is half a line, not a piece of two.
SLUICE_HD constexpr int place_of_column(int column) {
  return (column & ~127) | (column >> 3 & 3) << 5 | (column >> 5 & 3) << 3 | (column & 7);
}
inline constexpr int kPlaceOfLane = 8, kPlaceOfPiece = 32;  // of the lane's first column, and of eight more

/// Rows as sums of bf16: term k of row r begins at data + k * plane + r * stride, in elements. `columns` are
/// there, a multiple of 8; what is beyond is zero. Rows are in order where they meet integers, and where they
/// are read as callers have them; the columns of others lie at place_of_column.
struct Planes {
  std::uint16_t* data;
  std::size_t plane, stride;
  int terms, columns;
  bool in_order;

  SLUICE_HD int place(int column) const { return in_order ? column : place_of_column(column); }
};

/// What becomes of the sums.
struct Epilogue {
  Activation activation;
  ActivationParams params;
  Planes mid;  // [positions] where gate and up go, activated; unused for down
  float* out;  // [slots, out_stride] where down goes
  std::size_t out_stride;
  /// [positions, added_stride], a row of the strips each: what adapters add to the sums, before the bias.
  /// Null: the call has none.
  const float* added = nullptr;
  std::size_t added_stride = 0;
};

struct Product {
  const std::byte* experts;  // the first
  std::int64_t expert_bytes;
  StripsLayout weights;
  Planes input;
  const std::int32_t* slots;  // position -> slot
  const std::int32_t* rows;   // position -> row of the input; null: the same
  const Tile* tiles;
  const std::int32_t* tile_count;
  bool down;
  Epilogue epilogue;
};

/// Tokens of a tile by its width class: up to 16, which is the narrow kernel's, 32, 64, 128.
inline constexpr int kWidths = 4;
constexpr int tile_tokens(int width) { return 16 << width; }

/// The widest class for an input of so many terms: its tiles and a ring of weights fit the shared memory of
/// every card.
constexpr int widest(int terms) { return terms == 1 ? 3 : 2; }

/// Starts the tiles of a width class.
struct Launch {
  int width;
  cudaStream_t stream;
};
cudaError_t multiply_fp4_e8m0(const Product& product, const Launch& launch);
cudaError_t multiply_fp4_e4m3(const Product& product, const Launch& launch);
cudaError_t multiply_fp8_scaled(const Product& product, const Launch& launch);
cudaError_t multiply_fp8_e8m0(const Product& product, const Launch& launch);
cudaError_t multiply_bf16(const Product& product, const Launch& launch);
cudaError_t multiply_f16(const Product& product, const Launch& launch);
cudaError_t multiply_int4_g32(const Product& product, const Launch& launch);
cudaError_t multiply_int4_g128(const Product& product, const Launch& launch);
cudaError_t multiply_int8_g32(const Product& product, const Launch& launch);
cudaError_t multiply_int8_g128(const Product& product, const Launch& launch);
cudaError_t multiply_q4_k(const Product& product, const Launch& launch);
cudaError_t multiply_q5_k(const Product& product, const Launch& launch);
cudaError_t multiply_q6_k(const Product& product, const Launch& launch);

/// From ids to the tiles of every expert.
struct Group {
  const std::int32_t* ids;         // [slots] global
  const std::int32_t* expert_map;  // [experts] -> local or -1; null: the same
  int slots, experts, local_experts;
  int up_widest, down_widest;  // classes that tiles may have
  std::int32_t* local;         // [slots] local expert, or -1
  int top_k;
  std::int32_t* positions;  // [slots] position -> slot, by expert, ascending
  std::int32_t* rows;       // [slots] position -> slot / top_k
  std::int32_t* counts;     // [2, kWidths] tiles of a class, for up and for down; then the positions
  Tile* tiles;              // [2, kWidths, most_tiles]
  int most_tiles;
};
/// At most so many tiles has a class.
int most_tiles(int slots, int local_experts);
cudaError_t group(const Group& group, cudaStream_t stream);

/// Rows of a call to planes.
struct Stage {
  const std::byte* rows;
  std::ptrdiff_t row_stride;  // bytes
  DType dtype;
  int width;
  int count;             // of staged rows
  int slots_per_row;     // staged row r is row r / slots_per_row
  const float* weights;  // [count] to multiply by; null: none
  Planes out;
  const std::int32_t* local = nullptr;  // [count] a row's expert; rows of -1 are left out; null: none is
  /// Where every expert has an order of the columns: column k of a row is order[k] of the input, -1 a zero.
  const std::byte* orders = nullptr;  // of the first expert; null: as they are
  std::int64_t expert_bytes = 0;      // to the next
};
cudaError_t stage(const Stage& stage, cudaStream_t stream, After after);

/// Token t is the sum, in order, of its slots' weights times their rows.
struct Combine {
  const float* rows;          // [slots, width]
  const std::int32_t* local;  // [slots], -1 for none
  const float* weights;       // [slots]; null: ones
  int tokens, top_k, width;
  float* out;                  // [tokens, width]
  bool leave_unowned = false;  // with top_k 1: tokens without an expert stay as they are
};
cudaError_t combine(const Combine& combine, cudaStream_t stream);

}  // namespace sluice::cuda
