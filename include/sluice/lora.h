// SPDX-License-Identifier: Apache-2.0
// Low-rank adapters on experts: W x becomes W x + scale * B (A x), chosen token by token.
//
// The delta joins gate and up before bias, clamp and activation, and down before its bias. It is computed
// from the layer's input as given, never from a quantised one. See docs/decisions/011-lora.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sluice/tensor.h"

namespace sluice {

class Checkpoint;

/// A matrix of plain numbers (f32, f16 or bf16) at any strides, in bytes: a transpose, every second row or
/// the columns of one expert are views too. Fastest are A with dense rows and B with dense columns.
struct LoraMatrix {
  const std::byte* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t rows = 0, cols = 0;
  std::ptrdiff_t row_stride = 0, col_stride = 0;
};

/// scale * B A, or nothing.
struct LoraDelta {
  LoraMatrix a = {};  // [rank, columns of the weight]
  LoraMatrix b = {};  // [rows of the weight, rank]
  float scale = 0;    // alpha / rank, or alpha / sqrt(rank) with use_rslora

  explicit operator bool() const { return a.data != nullptr; }
  int rank() const { return static_cast<int>(a.rows); }
};

struct LoraExpert {
  LoraDelta gate = {}, up = {}, down = {};  // ranks may differ
};

/// One adapter of one layer.
struct LoraAdapter {
  std::vector<LoraExpert> routed = {};  // as LayerWeights::routed, or empty
  std::vector<LoraExpert> shared = {};  // one, or empty
  std::shared_ptr<const void> owner = {};

  /// The largest rank of `experts`.
  static int largest_rank(const std::vector<LoraExpert>& experts);
};

/// An adapter as PEFT saves it: adapter_config.json and adapter_model.safetensors, with modules for single
/// experts (`experts.3.gate_proj`) or on the stacked parameters (target_parameters `experts.gate_up_proj`).
/// Strict: a tensor in an MoE block that lands nowhere is an error.
class Lora {
 public:
  /// Reads and checks everything but the values against `model`. Throws corrupt_file, unsupported or io.
  static Lora open(const std::string& directory, const Checkpoint& model);

  const std::string& directory() const;
  /// The layers that it adapts, ascending.
  const std::vector<int>& layers() const;
  /// What it has for other parts of the model, a sentence each.
  const std::vector<std::string>& notes() const;
  /// What it has for `layer`, copied; empty where it has nothing. Throws corrupt_file for values that are
  /// not finite.
  LoraAdapter adapter(int layer) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace sluice
