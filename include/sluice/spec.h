// SPDX-License-Identifier: Apache-2.0
// What is to be computed, and the weights to compute it with.
//
// One token x goes through the experts e that its routing names, with weight w_e:
//
//   gate = W_gate x + b_gate      up = W_up x + b_up          [intermediate]
//   mid  = activation(gate, up, params)
//   y    = sum over e of  w_e (W_down mid + b_down)           [hidden]
//
// With weight_on_input the experts see w_e x and the sum is unweighted (Llama-4). A shared expert is the same
// computation with one expert of weight 1, or weight sigmoid(g . x).
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "sluice/name.h"
#include "sluice/routing.h"
#include "sluice/tensor.h"

namespace sluice {

/// How a weight matrix is stored: "f32", "f16", "bf16", "mxfp4", "nvfp4", "fp8_block128", "fp8_channel",
/// "fp8_tensor", "mxfp8".
using Format = Name<struct FormatTag>;

/// What happens between the two matrix products: "silu" (clamps first), "silu_then_clamp", "gelu_tanh",
/// "gelu_erf", "relu2".
using Activation = Name<struct ActivationTag>;

/// The numbers an activation reads. They travel as one value: a kernel cannot be handed the limit and not the
/// slope. No limit is infinity, for which every clamp is the identity.
struct ActivationParams {
  float limit = std::numeric_limits<float>::infinity();
  float slope = 1.0f;
  float shift = 0.0f;
  friend bool operator==(const ActivationParams&, const ActivationParams&) = default;
};

/// True when the activation has a gate matrix.
bool is_gated(Activation activation);

/// The formats of an expert's matrices. `gate` is absent when the activation has no gate.
struct MatrixFormats {
  std::optional<Format> gate;
  Format up;
  Format down;
  friend bool operator==(const MatrixFormats&, const MatrixFormats&) = default;
};

/// A set of experts of one shape.
struct ExpertsSpec {
  int hidden = 0;
  int intermediate = 0;
  int experts = 0;        // as routing ids count them
  int local_experts = 0;  // of which weights are here; less than `experts` needs an expert map
  int top_k = 0;
  MatrixFormats formats;
  Activation activation;
  ActivationParams params = {};
  bool gate_up_bias = false;
  bool down_bias = false;
  bool weight_on_input = false;
  int lora_rank = 0;  // the largest rank that adapters of a call may have; 0: no adapters
};

struct SharedSpec {
  ExpertsSpec experts;        // one expert, top 1
  bool sigmoid_gate = false;  // weighted by sigmoid(g . x) (Qwen2-MoE)
};

struct LayerSpec {
  ExpertsSpec routed;
  RouterSpec router;
  std::optional<SharedSpec> shared = {};
};

/// Scales of a quantised matrix: element (i, j) at `data + i * row_stride + j * col_stride` bytes. Scales
/// multiply.
struct ScalesView {
  const std::byte* data = nullptr;
  DType dtype = DType::f32;
  std::ptrdiff_t row_stride = 0;
  std::ptrdiff_t col_stride = 0;
};

/// A canonical view of one weight matrix, [rows = outputs, cols = inputs]. Element (r, c) of a format of
/// whole bytes is at `codes + r * row_stride + c * col_stride`; a 4-bit format is dense along c, the even
/// column in the low nibble of byte c / 2. Quirks of files (interleaved rows, transposes, dividing scales)
/// have been turned into strides and numbers before a matrix looks like this.
struct WeightMatrix {
  Format format;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  const std::byte* codes = nullptr;
  std::ptrdiff_t row_stride = 0;
  std::ptrdiff_t col_stride = 0;  // bytes; unused by 4-bit formats
  ScalesView scales = {};
  float second_scale = 1.0f;  // of the whole matrix (NVFP4), multiplies
};

struct ExpertWeights {
  std::optional<WeightMatrix> gate;  // [intermediate, hidden]
  WeightMatrix up;                   // [intermediate, hidden]
  WeightMatrix down;                 // [hidden, intermediate]
  VectorView gate_bias = {};         // [intermediate]
  VectorView up_bias = {};           // [intermediate]
  VectorView down_bias = {};         // [hidden]
};

/// The router's own numbers. `weight` is [experts, hidden] in a plain format; the rest is empty where the
/// spec has none. `table` holds [vocabulary, top_k] expert ids.
struct RouterWeights {
  std::optional<WeightMatrix> weight = {};
  VectorView bias = {};
  VectorView selection_bias = {};
  std::vector<std::int32_t> table = {};
};

/// Views of one layer. They borrow from `owner`, which keeps the mapped files alive.
struct LayerWeights {
  std::vector<ExpertWeights> routed;  // local experts, in the order of the expert map
  std::vector<ExpertWeights> shared;  // none or one
  VectorView shared_gate = {};        // [hidden]
  RouterWeights router = {};
  std::shared_ptr<const void> owner = {};
};

/// Throws invalid_argument unless the numbers of a spec make sense together: positive sizes, top_k within
/// experts, a gate exactly when the activation has one, no parameter that the activation does not read, no
/// NaN limit.
void validate(const LayerSpec& spec);

/// Throws invalid_argument unless the views have the shapes, formats and biases that the spec promises.
void validate(const LayerSpec& spec, const LayerWeights& weights);

}  // namespace sluice
