// SPDX-License-Identifier: Apache-2.0
// The border between the host and the kernels: what a product reads, and how it is started. Plain pointers
// into the card's memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "experts/cuda/common/layout.h"
#include "experts/cuda/common/terms.h"
#include "sluice/spec.h"

namespace sluice::cuda {

/// Columns of the products that a thread block computes: neighbouring positions of one expert.
struct Tile {
  std::int32_t expert, first, count;
};

/// Rows as sums of bf16: term k of row r begins at data + k * plane + r * stride, in elements.
struct Planes {
  std::uint16_t* data;
  std::size_t plane, stride;
  int terms;
};

/// What becomes of the sums.
struct Epilogue {
  Activation activation;
  ActivationParams params;
  Planes mid;  // where gate and up go, activated; unused for down
  float* out;  // where down goes, [positions, out_stride]
  std::size_t out_stride;
};

struct Product {
  const std::byte* experts;  // the first
  std::int64_t expert_bytes;
  StripsLayout weights;
  Planes input;
  const std::int32_t* rows;  // position -> row of the input; null: the same
  const Tile* tiles;
  bool down;
  Epilogue epilogue;
};

/// Tokens of a tile by its width class: 8, 16, 32, 64.
inline constexpr int kWidths = 4;
constexpr int tile_tokens(int width) { return 8 << width; }

/// Starts `tiles` tiles of a width class.
struct Launch {
  int width, tiles;
  cudaStream_t stream;
};
cudaError_t multiply_fp4_e8m0(const Product& product, const Launch& launch);
cudaError_t multiply_fp4_e4m3(const Product& product, const Launch& launch);
cudaError_t multiply_fp8_scaled(const Product& product, const Launch& launch);
cudaError_t multiply_fp8_e8m0(const Product& product, const Launch& launch);
cudaError_t multiply_bf16(const Product& product, const Launch& launch);
cudaError_t multiply_f16(const Product& product, const Launch& launch);

/// Terms that the input of a tile may have, so that it and a ring of weights fit the shared memory of every
/// card: one in the widest, three in others.
constexpr int most_terms(int width) { return width == kWidths - 1 ? 1 : kMostTerms; }
/// The widest class for an input of so many terms.
constexpr int widest(int terms) { return terms == 1 ? kWidths - 1 : kWidths - 2; }

/// Rows of a call to planes.
struct Stage {
  const std::byte* rows;  // [rows, width], dense
  DType dtype;
  int width;
  int count;                   // of staged rows
  const std::int32_t* source;  // staged row -> row; null: the same
  const float* weights;        // [count] to multiply by; null: none
  Planes out;                  // padded to whole blocks of columns with zeros
};
cudaError_t stage(const Stage& stage, cudaStream_t stream);

/// Zeros in columns [first, planes.stride) of `rows` rows.
cudaError_t clear_tail(const Planes& planes, int rows, int first, cudaStream_t stream);

/// Token t is the sum, in order, of its slots' weights times their rows.
struct Combine {
  const float* rows;              // [positions, width]
  const std::int32_t* positions;  // [tokens, top_k], -1 for none
  const float* weights;           // [tokens, top_k]; null: ones
  int tokens, top_k, width;
  float* out;  // [tokens, width]
};
cudaError_t combine(const Combine& combine, cudaStream_t stream);

}  // namespace sluice::cuda
