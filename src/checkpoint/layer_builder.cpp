// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/layer_builder.h"

#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/text.h"
#include "core/bits.h"
#include "core/error.h"

namespace sluice::checkpoint {
namespace {

constexpr const char* kBelongTogether = "config.json and the weights must belong together: fetch both again";

}  // namespace

WeightMatrix read_module(TensorReader& reader, const Quantisation& quantisation, const std::string& module,
                         MatrixShape shape) {
  const Scheme& scheme = quantisation.of(module);
  require(scheme.matrix != nullptr, ErrorKind::unsupported, [&] {
    return ErrorInfo{.code = "scheme_needs_stacks",
                     .what = fmt::format("{} stores all experts in one tensor, this family stores each alone",
                                         scheme.name),
                     .file = reader.files().described(),
                     .tensor = printable(module),
                     .why = "the configuration names a scheme that this family's tensors cannot be in",
                     .todo = kBelongTogether};
  });
  return scheme.matrix(reader, module, shape);
}

namespace {

std::string below(const LayerBlueprint& blueprint, std::string_view name) {
  return blueprint.block + std::string(name);
}

std::vector<WeightMatrix> read_stack(TensorReader& reader, const Quantisation& quantisation,
                                     const std::string& module, StackShape shape) {
  const Scheme& scheme = quantisation.of(module);
  require(scheme.stack != nullptr, ErrorKind::unsupported, [&] {
    return ErrorInfo{
        .code = "scheme_has_no_stacks",
        .what = fmt::format("{} stores each expert alone, this family stores all in one tensor", scheme.name),
        .file = reader.files().described(),
        .tensor = printable(module),
        .why = "the configuration names a scheme that this family's tensors cannot be in",
        .todo = kBelongTogether};
  });
  return scheme.stack(reader, module, shape);
}

/// Gate, up and down of one expert below `prefix` ("...experts.3.").
ExpertWeights read_expert(TensorReader& reader, const LayerBlueprint& blueprint,
                          const Quantisation& quantisation, const std::string& prefix,
                          std::int64_t intermediate) {
  const auto module = [&](std::string_view name) { return prefix + std::string(name); };
  const MatrixShape in{intermediate, blueprint.hidden}, out{blueprint.hidden, intermediate};
  ExpertWeights expert{.gate = {},
                       .up = read_module(reader, quantisation, module(blueprint.names.up), in),
                       .down = read_module(reader, quantisation, module(blueprint.names.down), out)};
  if (is_gated(blueprint.activation))
    expert.gate = read_module(reader, quantisation, module(blueprint.names.gate), in);
  return expert;
}

ExpertWeights read_shared(TensorReader& reader, const LayerBlueprint& blueprint,
                          const Quantisation& quantisation) {
  const SharedBlueprint& shared = *blueprint.shared;
  const std::string prefix = below(blueprint, blueprint.names.shared) + ".";
  LayerBlueprint named = blueprint;
  if (!shared.gate.empty()) named.names.gate = shared.gate;
  if (!shared.up.empty()) named.names.up = shared.up;
  if (!shared.down.empty()) named.names.down = shared.down;
  if (!shared.gate_in_up) return read_expert(reader, named, quantisation, prefix, shared.intermediate);
  const std::string up = prefix + std::string(named.names.up);
  const auto [gate_rows, up_rows] = halves_of(
      read_module(reader, quantisation, up, {2 * shared.intermediate, blueprint.hidden}), reader.files(), up);
  return {.gate = gate_rows,
          .up = up_rows,
          .down = read_module(reader, quantisation, prefix + std::string(named.names.down),
                              {blueprint.hidden, shared.intermediate})};
}

/// Rows first, first + step, ... of a matrix whose scales do not span rows.
WeightMatrix every_other_row(WeightMatrix matrix, int first) {
  matrix.codes += first * matrix.row_stride;
  matrix.row_stride *= 2;
  if (matrix.scales.data != nullptr) matrix.scales.data += first * matrix.scales.row_stride;
  matrix.scales.row_stride *= 2;
  matrix.rows /= 2;
  return matrix;
}

/// Elements [begin, begin + size * step) of `all`, every step-th.
VectorView part(const VectorView& all, std::int64_t begin, std::int64_t size, int step = 1) {
  return {all.data + begin * all.stride, all.dtype, size, all.stride * step};
}

/// A vector of `experts` rows of `size` elements, as one.
VectorView read_rows(TensorReader& reader, const std::string& name, std::int64_t experts, std::int64_t size) {
  const TensorView& view = *reader.need(name, {DType::bf16, DType::f32, DType::f16}, {experts, size}).view;
  return {view.data, view.dtype, experts * size, bits(view.dtype) / 8};
}

MatrixFormats formats_of(const ExpertWeights& expert) {
  return {.gate = expert.gate ? std::optional(expert.gate->format) : std::nullopt,
          .up = expert.up.format,
          .down = expert.down.format,
          .gate_grouping = expert.gate ? expert.gate->integers.grouping : Grouping{},
          .up_grouping = expert.up.integers.grouping,
          .down_grouping = expert.down.integers.grouping};
}

/// Those of most experts, of equally many the ones that come first, and the experts that have others.
void set_formats(const std::vector<ExpertWeights>& experts, ExpertsSpec& spec) {
  std::vector<MatrixFormats> kinds;
  std::vector<std::size_t> counts, kind_of;
  for (const ExpertWeights& expert : experts) {
    const MatrixFormats formats = formats_of(expert);
    const auto known = static_cast<std::size_t>(std::ranges::find(kinds, formats) - kinds.begin());
    if (known == kinds.size()) {
      kinds.push_back(formats);
      counts.push_back(0);
    }
    ++counts[known];
    kind_of.push_back(known);
  }
  const auto most = static_cast<std::size_t>(std::ranges::max_element(counts) - counts.begin());
  spec.formats = kinds[most];
  for (std::size_t e = 0; e < experts.size(); ++e)
    if (kind_of[e] != most) spec.others.push_back({static_cast<std::int32_t>(e), kinds[kind_of[e]]});
}

/// Ids of experts by token id, [vocabulary, top_k], I64 or I32.
std::vector<std::int32_t> read_token_table(TensorReader& reader, const LayerBlueprint& blueprint) {
  const RouterSpec& router = blueprint.router;
  const ModelTensor& tensor = reader.need(below(blueprint, blueprint.names.token_table),
                                          {DType::i64, DType::i32}, {blueprint.vocabulary, router.top_k});
  std::vector<std::int32_t> table;
  if (reader.depth() == Depth::headers) return table;
  const std::int64_t count = tensor.view->elements();
  table.reserve(static_cast<std::size_t>(count));  // the file holds as many
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t id = tensor.view->dtype == DType::i64
                                ? load<std::int64_t>(tensor.view->data + i * 8)
                                : std::int64_t{load<std::int32_t>(tensor.view->data + i * 4)};
    if (id < 0 || id >= router.experts) {
      reader.refuse({.code = "bad_expert_id",
                     .what = fmt::format("token {} goes to expert {}, there are {}", i / router.top_k, id,
                                         router.experts),
                     .file = *tensor.file,
                     .tensor = printable(tensor.name),
                     .todo = "Fetch the file again"});
      break;
    }
    table.push_back(static_cast<std::int32_t>(id));
  }
  return table;
}

RouterWeights read_router_weights(TensorReader& reader, const LayerBlueprint& blueprint) {
  const RouterSpec& router = blueprint.router;
  RouterWeights weights;
  weights.weight = blueprint.read_router_weight != nullptr
                       ? blueprint.read_router_weight(reader, blueprint)
                       : schemes::kPlain.matrix(reader, below(blueprint, blueprint.names.router),
                                                {router.experts, blueprint.hidden});
  if (router.bias)
    weights.bias = reader.vector(below(blueprint, blueprint.names.router_bias), router.experts);
  if (router.selection_bias)
    weights.selection_bias = reader.vector(below(blueprint, blueprint.names.selection_bias), router.experts);
  if (router.expert_scale)
    weights.expert_scale = reader.vector(below(blueprint, blueprint.names.expert_scale), router.experts);
  if (router.by_token_id) weights.table = read_token_table(reader, blueprint);
  return weights;
}

/// Plain where the file has it so, whatever the configuration says of other modules: engines that quantise
/// experts leave the projections alone without a line about it. Otherwise in the module's own scheme.
WeightMatrix read_projection(TensorReader& reader, const Quantisation& quantisation,
                             const std::string& module, MatrixShape shape) {
  const ModelTensor* const stored = reader.files().find(module + ".weight");
  const bool plain =
      stored != nullptr && (stored->view->dtype == DType::bf16 || stored->view->dtype == DType::f16 ||
                            stored->view->dtype == DType::f32);
  return plain ? schemes::kPlain.matrix(reader, module, shape)
               : read_module(reader, quantisation, module, shape);
}

LatentWeights read_latent(TensorReader& reader, const LayerBlueprint& blueprint,
                          const Quantisation& quantisation) {
  const LatentBlueprint& latent = *blueprint.latent;
  LatentWeights weights{.in = read_projection(reader, quantisation, below(blueprint, latent.in),
                                              {latent.width, blueprint.hidden}),
                        .out = read_projection(reader, quantisation, below(blueprint, latent.out),
                                               {blueprint.hidden, latent.width})};
  if (!latent.norm.empty()) weights.norm = reader.vector(below(blueprint, latent.norm), latent.width);
  return weights;
}

LatentSpec latent_spec(const LayerBlueprint& blueprint) {
  LatentSpec spec{.hidden = blueprint.hidden};
  if (!blueprint.latent->norm.empty()) spec.norm_epsilon = blueprint.latent->norm_epsilon;
  return spec;
}

bool ends_with_any(std::string_view name, std::initializer_list<std::string_view> ends) {
  return std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return name.ends_with(end); });
}

/// Activations are not quantised here, so what scales them may be there and is counted; everything else that
/// nobody asked for would change outputs if somebody did, and is refused.
int check_all_used(const TensorReader& reader, const LayerBlueprint& blueprint) {
  int activation_scales = 0;
  std::vector<const ModelTensor*> left;
  for (const std::string& part : blueprint.whole_parts()) {
    for (const ModelTensor* tensor : reader.unused(part)) left.push_back(tensor);
    for (const ModelTensor* tensor : reader.files().unlisted_below(part))
      if (!reader.files().has(tensor->name)) left.push_back(tensor);  // a second copy is only noted
  }
  for (const ModelTensor* tensor : left) {
    if (ends_with_any(tensor->name, {".input_scale", ".input_global_scale", ".activation_scale"})) {
      ++activation_scales;
      continue;
    }
    const bool scale = tensor->name.find("scale", tensor->name.rfind('.')) != tensor->name.npos ||
                       ends_with_any(tensor->name, {"_scales", "zero_point", "zeros", "g_idx"});
    fail(ErrorKind::corrupt_file,
         {.code = scale ? "unused_scale" : "unused_tensor",
          .what = fmt::format("layer {}: {} {} is in the file and nothing uses it", blueprint.layer,
                              scale ? "the scale tensor" : "the tensor", described(*tensor)),
          .file = *tensor->file,
          .tensor = printable(tensor->name),
          .why = fmt::format("a layer read as {} experts without it would give wrong outputs",
                             blueprint.router.experts),
          .todo = "Check that config.json belongs to these weights and names their quantisation"});
  }
  return activation_scales;
}

ExpertsSpec experts_spec(const LayerBlueprint& blueprint, const std::vector<ExpertWeights>& experts) {
  ExpertsSpec spec{.hidden = blueprint.hidden,
                   .intermediate = blueprint.intermediate,
                   .experts = blueprint.router.experts,
                   .local_experts = blueprint.router.experts,
                   .top_k = blueprint.router.top_k,
                   .formats = formats_of(experts.front()),
                   .activation = blueprint.activation,
                   .params = blueprint.params,
                   .weight_on_input = blueprint.weight_on_input};
  set_formats(experts, spec);
  return spec;
}

}  // namespace

std::vector<std::string> LayerBlueprint::whole_parts() const {
  if (parts.empty()) return {block};
  std::vector<std::string> whole;
  for (const std::string_view part : parts) whole.push_back(block + std::string(part));
  return whole;
}

std::vector<ExpertWeights> read_separate_experts(TensorReader& reader, const LayerBlueprint& blueprint,
                                                 const Quantisation& quantisation) {
  std::vector<ExpertWeights> experts;
  for (int e = 0; e < blueprint.router.experts; ++e) {
    const std::string prefix = below(blueprint, fmt::format(fmt::runtime(blueprint.names.expert), e)) + ".";
    require(!reader.files().below(prefix).empty(), ErrorKind::corrupt_file, [&] {
      return ErrorInfo{.code = "missing_expert",
                       .what = fmt::format("layer {}: expert {} of {} is missing", blueprint.layer, e,
                                           blueprint.router.experts),
                       .file = reader.files().described(),
                       .tensor = printable(prefix) + "*",
                       .todo = "Fetch the model again, all shards of it"};
    });
    experts.push_back(read_expert(reader, blueprint, quantisation, prefix, blueprint.intermediate));
  }
  return experts;
}

std::vector<ExpertWeights> read_interleaved_stack(TensorReader& reader, const LayerBlueprint& blueprint,
                                                  const Quantisation& quantisation) {
  const std::int64_t experts = blueprint.router.experts, hidden = blueprint.hidden,
                     width = blueprint.intermediate;
  const std::string stack = below(blueprint, blueprint.names.expert) + ".";
  const std::string gate_up = stack + std::string(blueprint.names.up),
                    down = stack + std::string(blueprint.names.down);
  const auto in = read_stack(reader, quantisation, gate_up, {experts, 2 * width, hidden});
  const auto out = read_stack(reader, quantisation, down, {experts, hidden, width});
  const VectorView in_bias = read_rows(reader, gate_up + "_bias", experts, 2 * width);
  const VectorView out_bias = read_rows(reader, down + "_bias", experts, hidden);
  std::vector<ExpertWeights> all;
  for (std::int64_t e = 0; e < experts; ++e) {
    const auto at = static_cast<std::size_t>(e);
    all.push_back({.gate = every_other_row(in[at], 0),
                   .up = every_other_row(in[at], 1),
                   .down = out[at],
                   .gate_bias = part(in_bias, e * 2 * width, width, 2),
                   .up_bias = part(in_bias, e * 2 * width + 1, width, 2),
                   .down_bias = part(out_bias, e * hidden, hidden)});
  }
  return all;
}

LayerParts build_layer(TensorReader& reader, const LayerBlueprint& blueprint,
                       const Quantisation& quantisation) {
  LayerWeights weights;
  weights.router = read_router_weights(reader, blueprint);
  LayerBlueprint routed = blueprint;
  if (blueprint.latent) routed.hidden = blueprint.latent->width;
  weights.routed = blueprint.read_experts(reader, routed, quantisation);
  LayerSpec spec{.routed = experts_spec(routed, weights.routed), .router = blueprint.router};
  if (blueprint.latent) {
    spec.latent = latent_spec(blueprint);
    weights.latent = read_latent(reader, blueprint, quantisation);
  }
  spec.routed.gate_up_bias = static_cast<bool>(weights.routed.front().up_bias);
  spec.routed.down_bias = static_cast<bool>(weights.routed.front().down_bias);
  if (blueprint.shared) {
    const int width = blueprint.shared->intermediate;
    weights.shared.push_back(read_shared(reader, blueprint, quantisation));
    ExpertsSpec shared = experts_spec(blueprint, weights.shared);
    shared.intermediate = width;
    shared.experts = shared.local_experts = shared.top_k = 1;
    shared.params = blueprint.shared->params;
    shared.weight_on_input = false;
    spec.shared = SharedSpec{.experts = shared, .sigmoid_gate = !blueprint.shared->sigmoid_gate.empty()};
    if (spec.shared->sigmoid_gate)
      weights.shared_gate = reader.vector(below(blueprint, blueprint.shared->sigmoid_gate), blueprint.hidden);
  }
  for (const std::string_view name : blueprint.not_needed) reader.ignore(below(blueprint, name));
  const int activation_scales = check_all_used(reader, blueprint);
  return {std::move(spec), std::move(weights), activation_scales};
}

}  // namespace sluice::checkpoint
