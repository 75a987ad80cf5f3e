// SPDX-License-Identifier: Apache-2.0
// Gemma-4 (26B-A4B): GELU, softmax over all experts, the best renormalised and multiplied by a scale for each
// expert. The dense MLP beside the experts is no part of the layer.
//
// The router does not see what the experts see. Experts get RMSNorm(x) with a weight, the router RMSNorm(x)
// times its own scale and hidden^-1/2, of the same x. The hidden state of a layer here is the experts' input,
// so the router's matrix takes up the quotient: W[e, c] scale[c] hidden^-1/2 / norm[c]. That is the same
// router, as both norms have the same epsilon, and needs every norm[c] to be other than zero.
#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "checkpoint/families/common.h"
#include "checkpoint/text.h"
#include "core/error.h"
#include "format/scales.h"

namespace sluice::checkpoint {
namespace {

constexpr std::string_view kNorm = "pre_feedforward_layernorm_2.weight";

float element(const VectorView& view, std::int64_t at) {
  return format::read_number(view.dtype, view.data + at * view.stride);
}

/// What the router multiplies the experts' input by, column by column.
std::vector<double> input_factors(TensorReader& reader, const LayerBlueprint& blueprint) {
  const std::string norm_name = blueprint.block + std::string(kNorm);
  const VectorView scale = reader.vector(blueprint.block + "router.scale", blueprint.hidden),
                   norm = reader.vector(norm_name, blueprint.hidden);
  std::vector<double> factors;
  if (reader.depth() == Depth::headers) return factors;
  for (std::int64_t c = 0; c < blueprint.hidden; ++c) {
    const double divisor = element(norm, c);
    require(divisor != 0 && std::isfinite(divisor), ErrorKind::unsupported, [&] {
      return ErrorInfo{
          .code = "router_input_lost",
          .what = fmt::format("element {} of the experts' norm is {}", c, divisor),
          .file = reader.files().described(),
          .tensor = printable(norm_name),
          .why =
              "the router reads what the norm was given, and that column cannot be had back from the "
              "experts' input",
          .todo = "Route outside of the library and give ids and weights"};
    });
    factors.push_back(element(scale, c) / (std::sqrt(static_cast<double>(blueprint.hidden)) * divisor));
  }
  return factors;
}

WeightMatrix read_router_weight(TensorReader& reader, const LayerBlueprint& blueprint) {
  const MatrixShape shape{blueprint.router.experts, blueprint.hidden};
  const WeightMatrix stored =
      schemes::kPlain.matrix(reader, blueprint.block + std::string(blueprint.names.router), shape);
  const std::vector<double> factors = input_factors(reader, blueprint);
  if (factors.empty()) return stored;
  std::vector<double> row(factors.size());
  std::vector<float> folded(factors.size());
  const std::size_t row_bytes = folded.size() * sizeof(float);
  std::byte* const codes = reader.own(row_bytes * static_cast<std::size_t>(shape.rows));
  for (std::int64_t e = 0; e < shape.rows; ++e) {
    decode_row(stored, e, row.data());
    for (std::size_t c = 0; c < row.size(); ++c) folded[c] = static_cast<float>(row[c] * factors[c]);
    std::memcpy(codes + static_cast<std::size_t>(e) * row_bytes, folded.data(), row_bytes);
  }
  return {.format = Formats::of<format::F32>(),
          .rows = shape.rows,
          .cols = shape.cols,
          .codes = codes,
          .row_stride = static_cast<std::ptrdiff_t>(row_bytes),
          .col_stride = sizeof(float)};
}

Blueprint read(const FamilyInput& whole) {
  const FamilyInput input = text_part(whole);
  const Config& config = input.config;
  Blueprint model = start(input);
  refuse_unknown_limits(config, {});
  if (!config.flag_or("enable_moe_block", false)) {
    model.notes.push_back("enable_moe_block is not set: this Gemma-4 is dense");
    return model;
  }
  const int experts = config.integer("num_experts", limits::kExperts);
  const int top_k = config.integer("top_k_experts", limits::kExperts);
  if (top_k > experts)
    config.refuse("config_out_of_range", "top_k_experts", fmt::format("there are only {} experts", experts));
  const LayerBlueprint pattern{
      .parts = {"experts.", "router."},
      .names = {.router = "router.proj",
                .expert_scale = "router.per_expert_scale",
                .expert = "experts",
                .gate = {},
                .up = "gate_up_proj",
                .down = "down_proj"},
      .hidden = config.integer("hidden_size", limits::kWidth),
      .intermediate = config.integer("moe_intermediate_size", limits::kWidth),
      .router = {.score = known<Score>("softmax"),
                 .experts = experts,
                 .top_k = top_k,
                 .renormalise = true,
                 .expert_scale = true},
      .activation = read_activation(config, "hidden_activation"),
      .read_router_weight = read_router_weight,
      .read_experts = read_fused_stacks,
  };
  add_layers(model, pattern, layers_prefix(input.files) + "{}.", all_layers(model.layers));
  model.notes.push_back(
      "hidden is the input of the experts (pre_feedforward_layernorm_2); the router's own norm and scale are "
      "taken up "
      "into its matrix, and per_expert_scale into the weights it gives");
  return model;
}

}  // namespace

const Family families_list::kGemma4{.model_type = "gemma4", .read = read};
const Family families_list::kGemma4Text{.model_type = "gemma4_text", .read = read};

}  // namespace sluice::checkpoint
