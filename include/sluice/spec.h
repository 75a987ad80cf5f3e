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
//
// Latent experts (Kimi-K3, the larger Nemotron-3) stand between two projections: the x above is W_in x of the
// layer's x, and W_out n comes of their y, where n is y or its RMS norm. Router and shared expert see the
// layer's x. See LatentSpec.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sluice/name.h"
#include "sluice/routing.h"
#include "sluice/tensor.h"

namespace sluice {

/// How a weight matrix is stored: "f32", "f16", "bf16", "mxfp4", "nvfp4", "fp8_block128", "fp8_channel",
/// "fp8_tensor", "mxfp8", "int2" to "int8", and the blocks of GGUF "q4_0", "q8_0", "q4_k", "q5_k", "q6_k".
using Format = Name<struct FormatTag>;

/// What happens between the two matrix products: "silu" (clamps first), "silu_then_clamp", "gelu_tanh",
/// "gelu_erf", "relu2", "situ".
using Activation = Name<struct ActivationTag>;

/// The numbers an activation reads. They travel as one value: a kernel cannot be handed the limit and not the
/// slope. No limit is infinity, for which every clamp is the identity.
struct ActivationParams {
  float limit = std::numeric_limits<float>::infinity();
  float slope = 1.0f;
  float shift = 0.0f;
  float situ_beta = std::numeric_limits<float>::infinity();         // where "situ" saturates the gate
  float situ_linear_beta = std::numeric_limits<float>::infinity();  // and up
  friend bool operator==(const ActivationParams&, const ActivationParams&) = default;
};

/// True when the activation has a gate matrix.
bool is_gated(Activation activation);

/// What the integer formats leave open. The others leave nothing open and have the default.
struct Grouping {
  int columns = 0;           // of a row that share a scale; the last group may be smaller; 0: the whole row
  bool zero_points = false;  // one beside every scale; otherwise the zero of `bits` bits is 2^(bits - 1)
  bool act_order = false;    // which column is in which group is listed (GPTQ's g_idx), not counted
  friend bool operator==(const Grouping&, const Grouping&) = default;
};

/// The formats of an expert's matrices. `gate` is absent when the activation has no gate.
struct MatrixFormats {
  std::optional<Format> gate;
  Format up;
  Format down;
  Grouping gate_grouping = {};
  Grouping up_grouping = {};
  Grouping down_grouping = {};
  friend bool operator==(const MatrixFormats&, const MatrixFormats&) = default;
};

/// One expert whose matrices are stored in other formats than those of its layer.
struct OtherFormats {
  std::int32_t expert = 0;  // its position among the local ones
  MatrixFormats formats;
  friend bool operator==(const OtherFormats&, const OtherFormats&) = default;
};

/// "mxfp4", "int4 g128", "int4 row, zero points, act-order".
std::string storage_text(Format format, const Grouping& grouping);
/// The same for all matrices, or "bf16/bf16/mxfp4" where gate, up and down differ.
std::string storage_text(const MatrixFormats& formats);

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
  /// Local experts that are not in `formats`, ascending (docs/decisions/015-mixed-experts.md).
  std::vector<OtherFormats> others = {};

  /// The formats of the local expert at `position`.
  const MatrixFormats& formats_of(std::int32_t position) const;
};

/// Which formats the local experts have: storage_text(formats), or "mxfp4; experts 0-2, 7: bf16".
std::string storage_text(const ExpertsSpec& spec);

struct SharedSpec {
  ExpertsSpec experts;        // one expert, top 1
  bool sigmoid_gate = false;  // weighted by sigmoid(g . x) (Qwen2-MoE)
};

/// Projections around the routed experts, whose `hidden` then is the latent width
/// (docs/decisions/019-latent-experts.md).
struct LatentSpec {
  int hidden = 0;  // the layer's width: of its rows, the router, the shared expert and all results
  /// n = y / sqrt(mean of y^2 + epsilon) * LatentWeights::norm. None: n = y.
  std::optional<float> norm_epsilon = {};
  /// The experts are a part of the layer's whose sums must meet before the norm (a slice, with a norm): calls
  /// give LayerCall::latent_out and nothing behind it.
  bool part = false;
  friend bool operator==(const LatentSpec&, const LatentSpec&) = default;
};

struct LayerSpec {
  ExpertsSpec routed;
  RouterSpec router;
  std::optional<SharedSpec> shared = {};
  std::optional<LatentSpec> latent = {};

  /// The width of the layer's rows. That of the routed experts' is routed.hidden, the same without `latent`.
  int hidden() const { return latent ? latent->hidden : routed.hidden; }
};

/// Scales of a quantised matrix: element (i, j) at `data + i * row_stride + j * col_stride` bytes. Scales
/// multiply.
struct ScalesView {
  const std::byte* data = nullptr;
  DType dtype = DType::f32;
  std::ptrdiff_t row_stride = 0;
  std::ptrdiff_t col_stride = 0;
};

/// How integers of 2 to 8 bits lie in 32-bit words, the first of them in the lowest bits.
enum class Packing : std::uint8_t {
  dense,   // one stream of bits; an integer may straddle two words
  padded,  // 32 / bits (rounded down) integers a word, the bits above them unused
  awq,     // 4 bits only: nibble i of a word is integer 0 2 4 6 1 3 5 7 [i] of its eight
};

/// A grid of packed integers. They are packed along its rows or along its columns; what they are packed along
/// is a line, and a line is whole words. Word w of line l is at `l * line_stride + w * word_stride` bytes.
struct PackedGrid {
  enum class Along : std::uint8_t { row, column };
  Packing packing = Packing::dense;
  Along along = Along::row;  // the line is a row, or a column
  std::ptrdiff_t line_stride = 0;
  std::ptrdiff_t word_stride = 4;
};

/// What a matrix of an integer format has beside codes and scales. value = (code - zero) * scale, code and
/// zero unsigned. Read it through format/integers.h.
struct IntegerParts {
  Grouping grouping = {};
  PackedGrid codes = {};             // [rows, cols] at WeightMatrix::codes
  const std::byte* zeros = nullptr;  // with zero points: [rows, groups] in `zeros_grid`
  PackedGrid zeros_grid = {};
  int zero_offset = 0;                       // zero = (stored + zero_offset) mod 2^bits; 1 in GPTQ's v1
  const std::byte* column_groups = nullptr;  // with act-order: int32 [cols], the group of a column
};

/// How GGUF stores 4-bit floats: `columns` columns of a row take `bytes` bytes, scales and codes together,
/// and such blocks follow each other along the row. Within a group of columns that share a scale the low
/// nibbles are its first half and the high ones the second. Read it through format/fp4_blocks.h.
struct BlockLayout {
  int columns = 0;  // 0: codes and scales lie apart, and nibbles are neighbours
  int bytes = 0;
};

/// A canonical view of one weight matrix, [rows = outputs, cols = inputs]. Element (r, c) of a format of
/// whole bytes is at `codes + r * row_stride + c * col_stride`; a 4-bit float format is dense along c, the
/// even column in the low nibble of byte c / 2, unless `blocks` says otherwise; where integers are,
/// `integers` says; the formats of GGUF's own are blocks at `codes`, `row_stride` bytes from row to row.
/// Quirks of files (interleaved rows, transposes, dividing scales) have been turned into strides and numbers
/// before a matrix looks like this.
struct WeightMatrix {
  Format format;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  const std::byte* codes = nullptr;
  std::ptrdiff_t row_stride = 0;
  std::ptrdiff_t col_stride = 0;  // bytes; unused by 4-bit formats
  ScalesView scales = {};
  float second_scale = 1.0f;   // of the whole matrix (NVFP4), multiplies
  IntegerParts integers = {};  // of integer formats, which use it in place of the strides
  BlockLayout blocks = {};  // of "mxfp4" and "nvfp4" from GGUF; codes and scales point into the first block
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
  VectorView expert_scale = {};
  std::vector<std::int32_t> table = {};
};

/// The projections around latent experts, in any format: they are decoded when a layer is packed.
struct LatentWeights {
  WeightMatrix in;       // [latent, hidden]
  WeightMatrix out;      // [hidden, latent]
  VectorView norm = {};  // [latent]; empty where the spec has no norm
};

/// A file that is mapped read-only, as it was when it was opened. Its pages may be given back to the system
/// at any time, since they can be read again.
struct SourceFile {
  std::string path;
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::int64_t modified_ns = 0;        // when its bytes were last written
  std::int64_t status_changed_ns = 0;  // and when anything about it was, which no program can set
};

/// Views of one layer. They borrow from `owner`, which keeps the mapped files alive.
struct LayerWeights {
  std::vector<ExpertWeights> routed;  // local experts, in the order of the expert map
  std::vector<ExpertWeights> shared;  // none or one
  VectorView shared_gate = {};        // [hidden]
  RouterWeights router = {};
  std::optional<LatentWeights> latent = {};
  std::shared_ptr<const void> owner = {};
  std::vector<SourceFile> files = {};  // those that views may point into; views elsewhere are told by content
  /// Looks at values that nobody has looked at yet, and throws what Checkpoint::weights throws; empty when
  /// all have been. A Layer calls it before it packs.
  std::function<void()> check = {};
};

/// Throws invalid_argument unless the numbers of a spec make sense together: positive sizes, top_k within
/// experts, a gate exactly when the activation has one, no parameter that the activation does not read, no
/// NaN limit.
void validate(const LayerSpec& spec);

/// Throws invalid_argument unless the views have the shapes, formats and biases that the spec promises.
void validate(const LayerSpec& spec, const LayerWeights& weights);

}  // namespace sluice
