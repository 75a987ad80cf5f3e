// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/gguf_layers.h"

#include <fmt/format.h>

#include <cmath>
#include <set>

#include "checkpoint/gguf_matrix.h"
#include "checkpoint/text.h"
#include "core/bits.h"
#include "core/error.h"
#include "format/formats.h"
#include "format/scales.h"

namespace sluice::checkpoint {
namespace {

class LayerReader {
 public:
  LayerReader(const GgufFiles& files, const GgufLayerPlan& plan, Depth depth)
      : files_(files), plan_(plan), depth_(depth), block_(fmt::format("blk.{}.", plan.layer)) {}

  LayerParts read() {
    RouterSpec router = plan_.router;
    LayerWeights weights;
    weights.router = read_router(router);
    weights.routed = read_routed();
    LayerParts layer{.spec = {.routed = experts_spec(weights.routed.front()), .router = router},
                     .weights = std::move(weights)};
    if (plan_.shared) read_shared(layer);
    layer.activation_scales = check_all_used();
    return layer;
  }

 private:
  bool has(std::string_view name) const { return files_.find(block_ + std::string(name)) != nullptr; }

  const GgufTensor& need(std::string_view name) {
    const std::string whole = block_ + std::string(name);
    const GgufTensor* tensor = files_.find(whole);
    require(tensor != nullptr, ErrorKind::corrupt_file, [&] {
      return ErrorInfo{.code = "missing_tensor",
                       .what = "a tensor that the model needs is missing",
                       .file = files_.described(),
                       .tensor = whole,
                       .why = "the architecture and the file's keys ask for it",
                       .todo = "Fetch the file again, all parts of it"};
    });
    used_.insert(tensor->name);
    return *tensor;
  }

  /// Whether a tensor that an architecture may have is to be read.
  bool wants(Has has_it, std::string_view name) const {
    return has_it == Has::yes || (has_it == Has::maybe && has(name));
  }

  VectorView vector(std::string_view name, std::int64_t size) {
    const GgufTensor& tensor = need(name);
    check_gguf_shape(tensor, {.cols = size});
    return gguf_vector(tensor, {.cols = size}, 0);
  }

  RouterWeights read_router(RouterSpec& router) {
    RouterWeights weights;
    const GgufShape shape{.cols = plan_.hidden, .rows = router.experts};
    const GgufTensor& gate = need("ffn_gate_inp.weight");
    check_gguf_shape(gate, shape);
    gguf_vector(gate, shape, 0);  // for its check of the type
    weights.weight = gguf_matrix(gate, shape, 0);
    if (wants(plan_.biases, "ffn_gate_inp.bias")) {
      router.bias = true;
      weights.bias = vector("ffn_gate_inp.bias", router.experts);
    }
    if (wants(plan_.selection_bias, "exp_probs_b.bias")) {
      router.selection_bias = true;
      weights.selection_bias = vector("exp_probs_b.bias", router.experts);
    }
    // As DeepSeek has it: groups are ranked by their two best where there is a selection bias.
    if (router.selection_bias) router.group_score = GroupScore::two_best;
    router.by_token_id = plan_.by_token_id;
    if (router.by_token_id) weights.table = read_token_table(router);
    return weights;
  }

  std::vector<std::int32_t> read_token_table(const RouterSpec& router) {
    const GgufTensor& tensor = need("ffn_gate_tid2eid.weight");
    require(tensor.type->id == ggml::kI32 && tensor.ne[0] == router.top_k && tensor.rank <= 2,
            ErrorKind::corrupt_file, [&] {
              return ErrorInfo{.code = "gguf_wrong_shape",
                               .what = fmt::format("the tensor is {}, I32 [{}, tokens] was expected",
                                                   tensor.described(), router.top_k),
                               .file = *tensor.file,
                               .tensor = printable(tensor.name),
                               .todo = "Fetch the file again"};
            });
    std::vector<std::int32_t> table;
    if (depth_ == Depth::headers) return table;
    const std::int64_t count = tensor.ne[0] * tensor.ne[1];
    table.reserve(static_cast<std::size_t>(count));  // the file holds as many
    for (std::int64_t i = 0; i < count; ++i) {
      table.push_back(load<std::int32_t>(tensor.data + 4 * i));
      require(table.back() >= 0 && table.back() < router.experts, ErrorKind::corrupt_file, [&] {
        return ErrorInfo{.code = "bad_expert_id",
                         .what = fmt::format("token {} goes to expert {}, there are {}", i / router.top_k,
                                             table.back(), router.experts),
                         .file = *tensor.file,
                         .tensor = printable(tensor.name),
                         .todo = "Fetch the file again"};
      });
    }
    return table;
  }

  /// The weight of a module, its scales checked.
  const GgufTensor& weight(const std::string& module, const GgufShape& shape) {
    const GgufTensor& tensor = need(module + ".weight");
    check_gguf_shape(tensor, shape);
    gguf_format(tensor);
    if (depth_ == Depth::values) check_gguf_scales(tensor);
    return tensor;
  }

  /// The second scale of an expert's matrix: one for all experts, or one each. It belongs to NVFP4.
  float second_scale(const std::string& module, Format format, std::int64_t expert, std::int64_t experts) {
    const std::string name = module + ".scale";
    if (!has(name)) return 1.0f;
    const GgufTensor& tensor = need(name);
    const std::int64_t size = tensor.ne[0] == 1 ? 1 : experts;
    check_gguf_shape(tensor, {.cols = size});
    const VectorView all = gguf_vector(tensor, {.cols = size}, 0);
    const float scale = format::read_number(all.dtype, all.data + (size == 1 ? 0 : expert) * all.stride);
    require(std::isfinite(scale) && scale > 0, ErrorKind::corrupt_file, [&] {
      return ErrorInfo{.code = "gguf_bad_scale",
                       .what = fmt::format("the scale of expert {} is {}", expert, scale),
                       .file = *tensor.file,
                       .tensor = printable(tensor.name),
                       .why = "a scale is positive and finite",
                       .todo = "Fetch the file again; if it is as published, it was quantised wrongly"};
    });
    require(scale == 1.0f || geometry(format).second_scale, ErrorKind::unsupported, [&] {
      return ErrorInfo{
          .code = "gguf_scale_without_use",
          .what = fmt::format("weights in {} have a scale of {} beside them", format.str(), scale),
          .file = *tensor.file,
          .tensor = printable(tensor.name),
          .why = "only NVFP4 has such a second scale",
          .todo = "Use a file quantised to NVFP4, or the model's safetensors"};
    });
    return scale;
  }

  WeightMatrix matrix(const std::string& module, const GgufShape& shape, std::int64_t expert) {
    WeightMatrix its = gguf_matrix(*files_.find(block_ + module + ".weight"), shape, expert);
    its.second_scale = second_scale(module, its.format, expert, shape.experts);
    return its;
  }

  std::vector<ExpertWeights> read_routed() {
    const std::int64_t experts = plan_.router.experts;
    const GgufShape in{plan_.hidden, plan_.intermediate, experts},
        out{plan_.intermediate, plan_.hidden, experts};
    if (has("ffn_gate_up_exps.weight")) return read_merged(in, out);
    if (!has("ffn_up_exps.weight") && has("ffn_up.0.weight")) return read_single(in, out);
    for (const char* module : {"ffn_gate_exps", "ffn_up_exps"}) weight(module, in);
    weight("ffn_down_exps", out);
    std::vector<ExpertWeights> all;
    for (std::int64_t e = 0; e < experts; ++e)
      all.push_back({.gate = matrix("ffn_gate_exps", in, e),
                     .up = matrix("ffn_up_exps", in, e),
                     .down = matrix("ffn_down_exps", out, e)});
    read_biases(all);
    return all;
  }

  /// Gate rows first in one tensor.
  std::vector<ExpertWeights> read_merged(const GgufShape& in, const GgufShape& out) {
    const GgufShape both{in.cols, 2 * in.rows, in.experts};
    weight("ffn_gate_up_exps", both);
    weight("ffn_down_exps", out);
    std::vector<ExpertWeights> all;
    for (std::int64_t e = 0; e < in.experts; ++e) {
      WeightMatrix gate = matrix("ffn_gate_up_exps", both, e);
      gate.rows = in.rows;
      WeightMatrix up = gate;
      up.codes += in.rows * up.row_stride;
      if (up.scales.data != nullptr) up.scales.data += in.rows * up.scales.row_stride;
      all.push_back({.gate = gate, .up = up, .down = matrix("ffn_down_exps", out, e)});
    }
    if (wants(plan_.biases, "ffn_gate_up_exps.bias")) {
      const VectorView in_bias = bias("ffn_gate_up_exps.bias", 2 * in.rows);
      for (std::int64_t e = 0; e < in.experts; ++e) {
        ExpertWeights& expert = all[static_cast<std::size_t>(e)];
        expert.gate_bias = part(in_bias, 2 * e * in.rows, in.rows);
        expert.up_bias = part(in_bias, (2 * e + 1) * in.rows, in.rows);
      }
    }
    read_down_bias(all);
    return all;
  }

  /// A tensor for each expert, as files before 2024 have them.
  std::vector<ExpertWeights> read_single(const GgufShape& in, const GgufShape& out) {
    const GgufShape wide{in.cols, in.rows, 1}, down{out.cols, out.rows, 1};
    std::vector<ExpertWeights> all;
    for (std::int64_t e = 0; e < in.experts; ++e) {
      const auto one = [&](const char* name, const GgufShape& shape) {
        const std::string module = fmt::format("{}.{}", name, e);
        weight(module, shape);
        return matrix(module, shape, 0);
      };
      all.push_back(
          {.gate = one("ffn_gate", wide), .up = one("ffn_up", wide), .down = one("ffn_down", down)});
      require(all.back().gate->format == all.front().gate->format &&
                  all.back().up.format == all.front().up.format &&
                  all.back().down.format == all.front().down.format,
              ErrorKind::unsupported, [&] {
                return ErrorInfo{
                    .code = "experts_differ",
                    .what = fmt::format("layer {}: expert {} is stored in other formats than expert 0",
                                        plan_.layer, e),
                    .file = files_.described(),
                    .tensor = fmt::format("{}ffn_up.{}.weight", block_, e),
                    .why = "all experts of a layer must be stored alike",
                    .todo = "Use a file whose experts are quantised alike"};
              });
    }
    return all;
  }

  /// Elements [begin, begin + size) of `all`.
  static VectorView part(const VectorView& all, std::int64_t begin, std::int64_t size) {
    return {all.data + begin * all.stride, all.dtype, size, all.stride};
  }

  /// [experts, size] as one vector.
  VectorView bias(std::string_view name, std::int64_t size) {
    const GgufTensor& tensor = need(name);
    check_gguf_shape(tensor, {.cols = size, .rows = plan_.router.experts});
    VectorView view = gguf_vector(tensor, {.cols = size}, 0);
    view.size = size * plan_.router.experts;
    return view;
  }

  void read_biases(std::vector<ExpertWeights>& all) {
    const std::int64_t wide = plan_.intermediate;
    if (wants(plan_.biases, "ffn_up_exps.bias")) {
      const VectorView gate = bias("ffn_gate_exps.bias", wide), up = bias("ffn_up_exps.bias", wide);
      for (std::size_t e = 0; e < all.size(); ++e) {
        all[e].gate_bias = part(gate, static_cast<std::int64_t>(e) * wide, wide);
        all[e].up_bias = part(up, static_cast<std::int64_t>(e) * wide, wide);
      }
    }
    read_down_bias(all);
  }

  void read_down_bias(std::vector<ExpertWeights>& all) {
    if (!wants(plan_.biases, "ffn_down_exps.bias")) return;
    const VectorView down = bias("ffn_down_exps.bias", plan_.hidden);
    for (std::size_t e = 0; e < all.size(); ++e)
      all[e].down_bias = part(down, static_cast<std::int64_t>(e) * plan_.hidden, plan_.hidden);
  }

  ExpertsSpec experts_spec(const ExpertWeights& first) const {
    return {.hidden = plan_.hidden,
            .intermediate = plan_.intermediate,
            .experts = plan_.router.experts,
            .local_experts = plan_.router.experts,
            .top_k = plan_.router.top_k,
            .formats = {.gate = first.gate->format, .up = first.up.format, .down = first.down.format},
            .activation = plan_.activation,
            .params = plan_.params,
            .gate_up_bias = static_cast<bool>(first.up_bias),
            .down_bias = static_cast<bool>(first.down_bias),
            .weight_on_input = plan_.weight_on_input};
  }

  void read_shared(LayerParts& layer) {
    const GgufSharedPlan& shared = *plan_.shared;
    const GgufShape in{plan_.hidden, shared.intermediate, 1}, out{shared.intermediate, plan_.hidden, 1};
    for (const char* module : {"ffn_gate_shexp", "ffn_up_shexp"}) weight(module, in);
    weight("ffn_down_shexp", out);
    layer.weights.shared.push_back({.gate = matrix("ffn_gate_shexp", in, 0),
                                    .up = matrix("ffn_up_shexp", in, 0),
                                    .down = matrix("ffn_down_shexp", out, 0)});
    ExpertsSpec spec = experts_spec(layer.weights.shared.front());
    spec.intermediate = shared.intermediate;
    spec.experts = spec.local_experts = spec.top_k = 1;
    spec.params = shared.params;
    spec.weight_on_input = false;
    layer.spec.shared = SharedSpec{.experts = spec};
    if (!wants(shared.sigmoid_gate, "ffn_gate_inp_shexp.weight")) return;
    layer.spec.shared->sigmoid_gate = true;
    layer.weights.shared_gate = vector("ffn_gate_inp_shexp.weight", plan_.hidden);
  }

  /// What is below ffn_ and not read would change outputs if somebody did, but for norms before the block.
  /// Scales of activations, which are not quantised here, are counted.
  int check_all_used() const {
    int activation_scales = 0;
    for (const std::string& prefix : {block_ + "ffn_", block_ + "exp_probs_b"})
      for (const GgufTensor& tensor : files_.below(prefix)) {
        const std::string_view rest = tensor.name.substr(block_.size());
        if (used_.contains(tensor.name) || rest.starts_with("ffn_norm.")) continue;
        if (rest.ends_with(".input_scale")) {
          ++activation_scales;
          continue;
        }
        fail(ErrorKind::corrupt_file,
             {.code = "unused_tensor",
              .what = fmt::format("layer {}: the tensor {} is in the file and nothing uses it", plan_.layer,
                                  tensor.described()),
              .file = *tensor.file,
              .tensor = printable(tensor.name),
              .why = "a layer read without it would give wrong outputs",
              .todo = "Use the model's safetensors, or report the architecture"});
      }
    return activation_scales;
  }

  const GgufFiles& files_;
  const GgufLayerPlan& plan_;
  const Depth depth_;
  const std::string block_;
  std::set<std::string_view> used_;
};

}  // namespace

LayerParts build_gguf_layer(const GgufFiles& files, const GgufLayerPlan& plan, Depth depth) {
  return LayerReader(files, plan, depth).read();
}

std::int64_t gguf_layer_bytes(const GgufFiles& files, int layer) {
  std::int64_t bytes = 0;
  const std::string block = fmt::format("blk.{}.", layer);
  for (const char* part : {"ffn_", "exp_probs_b"})
    for (const GgufTensor& tensor : files.below(block + part))
      bytes += static_cast<std::int64_t>(tensor.bytes);
  return bytes;
}

}  // namespace sluice::checkpoint
