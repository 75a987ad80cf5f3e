// SPDX-License-Identifier: Apache-2.0
// How quantisation schemes spell one matrix in a file. Only the sample writers include this.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/geometry.h"
#include "testing/draw.h"
#include "testing/safetensors_writer.h"

namespace sluice::testing::sample {

/// The tensors of one file under construction, and where its numbers come from.
struct Shard {
  Draw draw;
  std::vector<NamedTensor> tensors = {};

  void add(std::string name, DType dtype, std::vector<std::int64_t> shape, std::vector<std::byte> bytes) {
    tensors.push_back({std::move(name), dtype, std::move(shape), std::move(bytes)});
  }
};

/// A matrix as drawn: [rows, cols], normal.
struct Drawn {
  std::int64_t rows = 0, cols = 0;
  std::vector<float> values = {};
};

Drawn draw_matrix(Shard& shard, std::int64_t rows, std::int64_t cols, double deviation);

template <class T>
std::vector<std::byte> bytes_of(std::span<const T> values) {
  const auto bytes = std::as_bytes(values);
  return {bytes.begin(), bytes.end()};
}

format::Encoded encoded(std::string_view format, const Drawn& drawn);

void add_bf16(Shard& shard, const std::string& name, const Drawn& drawn);
/// Any shape, drawn.
void add_drawn_bf16(Shard& shard, const std::string& name, std::vector<std::int64_t> shape, double deviation);

/// Adds a matrix and its scales; `name` is without ".weight".
using AddMatrix = void (*)(Shard& shard, const std::string& name, const Drawn& drawn);

void add_plain_weight(Shard& shard, const std::string& name, const Drawn& drawn);
/// DeepSeek-V4's own FP4: codes as signed bytes, scales E8M0.
void add_deepseek_fp4(Shard& shard, const std::string& name, const Drawn& drawn);
/// FP8 in blocks of 128 x 128, ".scale" of float32.
void add_deepseek_fp8(Shard& shard, const std::string& name, const Drawn& drawn);
/// The same with scales that are powers of two, stored as E8M0 ("scale_fmt": "ue8m0").
void add_deepseek_fp8_e8m0(Shard& shard, const std::string& name, const Drawn& drawn);
/// FP8 in blocks of 128 x 128, ".weight_scale_inv" of float32.
void add_hugging_face_fp8(Shard& shard, const std::string& name, const Drawn& drawn);
/// MiniMax-M3's MXFP8: ".weight_scale_inv" of bytes that are exponents.
void add_minimax_mxfp8(Shard& shard, const std::string& name, const Drawn& drawn);
/// ModelOpt: the second scale multiplies, and an input scale that weights do not need comes along.
void add_modelopt_nvfp4(Shard& shard, const std::string& name, const Drawn& drawn);
/// ModelOpt's FP8: one scale for the whole matrix.
void add_modelopt_fp8(Shard& shard, const std::string& name, const Drawn& drawn);
/// compressed-tensors: the global scale divides.
void add_compressed_nvfp4(Shard& shard, const std::string& name, const Drawn& drawn);
void add_compressed_mxfp4(Shard& shard, const std::string& name, const Drawn& drawn);

/// GPTQ v1: 4 bits in groups of 32, symmetric, act-order.
void add_gptq(Shard& shard, const std::string& name, const Drawn& drawn);
/// AWQ in gemm order: 4 bits in groups of 32 with zero points.
void add_awq(Shard& shard, const std::string& name, const Drawn& drawn);
/// compressed-tensors pack-quantized: 3 bits in groups of 32, densely packed.
void add_packed_int3(Shard& shard, const std::string& name, const Drawn& drawn);

}  // namespace sluice::testing::sample
