// SPDX-License-Identifier: Apache-2.0
#include "testing/gguf_model.h"

#include <cmath>
#include <stdexcept>
#include <string>

#include "format/formats.h"
#include "format/scales.h"
#include "testing/drawn_layer.h"

namespace sluice::testing {
namespace {

constexpr const char* kArchitecture = "deepseek2";

std::uint32_t ggml_type(const WeightMatrix& matrix) {
  constexpr std::pair<const char*, std::uint32_t> kTypes[] = {
      {"q4_0", 2}, {"q8_0", 8}, {"q4_k", 12}, {"q5_k", 13}, {"q6_k", 14}};
  for (const auto& [name, type] : kTypes)
    if (matrix.format.str() == name) return type;
  return 0;  // F32
}

/// Row by row, as blocks or as F32.
std::string bytes_of(const WeightMatrix& matrix) {
  std::string bytes;
  const format::Geometry& shape = geometry(matrix.format);
  std::vector<float> row(static_cast<std::size_t>(matrix.cols));
  for (std::int64_t r = 0; r < matrix.rows; ++r) {
    if (is_ggml_block(matrix.format)) {
      bytes.append(reinterpret_cast<const char*>(matrix.codes + r * matrix.row_stride),
                   static_cast<std::size_t>(matrix.cols / shape.block_cols * shape.block_bytes));
    } else {
      decode_row(matrix, r, row.data());
      bytes.append(reinterpret_cast<const char*>(row.data()), row.size() * sizeof(float));
    }
  }
  return bytes;
}

class Writer {
 public:
  explicit Writer(int layer) : prefix_("blk." + std::to_string(layer) + ".") {}

  void add(const char* name, const WeightMatrix& matrix) {
    tensors.push_back(
        {.name = prefix_ + name,
         .type = ggml_type(matrix),
         .ne = {static_cast<std::uint64_t>(matrix.cols), static_cast<std::uint64_t>(matrix.rows)},
         .bytes = bytes_of(matrix)});
  }

  void add_stack(const char* name, const LayerWeights& weights, WeightMatrix (*of)(const ExpertWeights&)) {
    const WeightMatrix first = of(weights.routed.front());
    GgufWriter::Tensor stack{.name = prefix_ + name,
                             .type = ggml_type(first),
                             .ne = {static_cast<std::uint64_t>(first.cols),
                                    static_cast<std::uint64_t>(first.rows), weights.routed.size()},
                             .bytes = {}};
    for (const ExpertWeights& expert : weights.routed) stack.bytes += bytes_of(of(expert));
    tensors.push_back(std::move(stack));
  }

  void add_bias(const VectorView& bias) {
    GgufWriter::Tensor tensor{
        .name = prefix_ + "exp_probs_b.bias", .ne = {static_cast<std::uint64_t>(bias.size)}, .bytes = {}};
    for (std::int64_t i = 0; i < bias.size; ++i)
      tensor.bytes += GgufWriter::raw(format::read_number(bias.dtype, bias.data + i * bias.stride));
    tensors.push_back(std::move(tensor));
  }

  std::vector<GgufWriter::Tensor> tensors;

 private:
  std::string prefix_;
};

WeightMatrix gate_of(const ExpertWeights& expert) { return *expert.gate; }
WeightMatrix up_of(const ExpertWeights& expert) { return expert.up; }
WeightMatrix down_of(const ExpertWeights& expert) { return expert.down; }

bool can_be_said(const LayerSpec& spec) {
  const bool plain = spec.routed.activation.str() == "silu" && spec.routed.params == ActivationParams{} &&
                     !spec.routed.gate_up_bias && !spec.routed.down_bias && spec.routed.others.empty();
  const auto score = spec.router.score.str();
  return plain && (score == "softmax" || score == "sigmoid") && !spec.router.bias &&
         !spec.router.expert_scale && (!spec.shared || !spec.shared->sigmoid_gate);
}

void add_keys(GgufWriter& file, const LayerSpec& spec, std::size_t layers, int first) {
  const auto key = [](const char* name) { return std::string(kArchitecture) + "." + name; };
  const auto number = [&](const char* name, int value) {
    file.add_u32(key(name), static_cast<std::uint32_t>(value));
  };
  file.add_text("general.architecture", kArchitecture);
  number("block_count", first + static_cast<int>(layers));
  number("leading_dense_block_count", first);
  number("embedding_length", spec.routed.hidden);
  number("feed_forward_length", 4 * spec.routed.intermediate);
  number("expert_feed_forward_length", spec.routed.intermediate);
  number("expert_count", spec.router.experts);
  number("expert_used_count", spec.router.top_k);
  number("expert_shared_count",
         spec.shared ? spec.shared->experts.intermediate / spec.routed.intermediate : 0);
  number("expert_gating_func", spec.router.score.str() == "softmax" ? 1 : 2);
  number("expert_group_count", spec.router.groups);
  number("expert_group_used_count", spec.router.groups_kept);
  file.add_flag(key("expert_weights_norm"), spec.router.renormalise);
  file.add_f32(key("expert_weights_scale"), spec.router.scale);
}

}  // namespace

GgufWriter write_deepseek_gguf(const std::vector<GgufLayer>& layers, int first) {
  GgufWriter file;
  add_keys(file, layers.front().spec, layers.size(), first);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto& [spec, weights] = layers[i];
    if (!can_be_said(spec)) throw std::logic_error("deepseek2 has no such layers");
    Writer layer(first + static_cast<int>(i));
    layer.add("ffn_gate_inp.weight", *weights.router.weight);
    if (spec.router.selection_bias) layer.add_bias(weights.router.selection_bias);
    layer.add_stack("ffn_gate_exps.weight", weights, gate_of);
    layer.add_stack("ffn_up_exps.weight", weights, up_of);
    layer.add_stack("ffn_down_exps.weight", weights, down_of);
    if (spec.shared) {
      layer.add("ffn_gate_shexp.weight", *weights.shared[0].gate);
      layer.add("ffn_up_shexp.weight", weights.shared[0].up);
      layer.add("ffn_down_shexp.weight", weights.shared[0].down);
    }
    for (GgufWriter::Tensor& tensor : layer.tensors) file.tensors.push_back(std::move(tensor));
  }
  return file;
}

std::vector<GgufLayer> draw_deepseek_layers(std::uint64_t seed) {
  constexpr int kSize = 256, kExperts = 8;
  const auto format = [](const char* name) { return *Format::parse(name); };
  std::vector<GgufLayer> layers;
  for (const char* down : {"q6_k", "q8_0"}) {
    LayerSpec spec{.routed = {.hidden = kSize,
                              .intermediate = kSize,
                              .experts = kExperts,
                              .local_experts = kExperts,
                              .top_k = 3,
                              .formats = {.gate = format("q4_k"), .up = format("q4_k"), .down = format(down)},
                              .activation = *Activation::parse("silu")},
                   .router = {.score = *Score::parse("sigmoid"),
                              .experts = kExperts,
                              .top_k = 3,
                              .groups = 4,
                              .groups_kept = 2,
                              .group_score = GroupScore::two_best,
                              .selection_bias = true,
                              .renormalise = true,
                              .scale = 2.5f}};
    ExpertsSpec shared = spec.routed;
    shared.experts = shared.local_experts = shared.top_k = 1;
    shared.formats = {.gate = format("q5_k"), .up = format("q5_k"), .down = format("q5_k")};
    spec.shared = SharedSpec{.experts = shared};
    layers.push_back({spec, draw_weights(spec, Numbers::noisy, seed + layers.size())});
  }
  return layers;
}

}  // namespace sluice::testing
