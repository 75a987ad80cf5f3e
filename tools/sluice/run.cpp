// SPDX-License-Identifier: Apache-2.0
// sluice run MODEL --layer N --input IN --output OUT: one layer, tensors in and tensors out.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "errors.h"
#include "json.h"
#include "model.h"
#include "output.h"
#include "progress.h"
#include "sluice/layer.h"
#include "sluice/lora.h"
#include "testing/device_for.h"
#include "testing/layer_input.h"
#include "testing/safetensors_writer.h"
#include "verbs.h"

namespace sluice::tools {

namespace {

using testing::LayerInput;
using testing::NamedTensor;

/// Tokens that a call computes at a time: enough to use every core, and a workspace of some hundred megabytes
/// at most.
constexpr int kTokensAtOnce = 512;

struct Outputs {
  std::vector<std::int32_t> topk_ids;
  std::vector<float> topk_weights, experts_out, block_out;

  Outputs(std::size_t tokens, const LayerSpec& spec)
      : topk_ids(tokens * static_cast<std::size_t>(spec.routed.top_k)),
        topk_weights(topk_ids.size()),
        experts_out(tokens * static_cast<std::size_t>(spec.hidden())),
        block_out(experts_out.size()) {}
};

/// The adapters of --lora for one layer, and which each token takes.
struct Adapters {
  std::vector<LoraAdapter> all = {};
  std::vector<const LoraAdapter*> pointers = {};
  std::vector<std::int32_t> ids = {};
};

/// Nothing for the layer would be the model's own answer under the adapter's name.
void require_adapted(const Lora& lora, int layer) {
  const std::vector<int>& layers = lora.layers();
  if (std::find(layers.begin(), layers.end(), layer) != layers.end()) return;
  throw Error(ErrorKind::invalid_argument,
              {.code = "layer_not_adapted",
               .what = fmt::format("the adapter has nothing for layer {}", layer),
               .file = lora.directory(),
               .why = fmt::format("it adapts {}", fmt::join(layers, ", ")),
               .todo = "give one of these layers, or leave --lora out"});
}

/// Ids that the file gives, or the first adapter for every token. Ids without an adapter of that number are
/// the file's fault, or --lora was forgotten.
Adapters read_adapters(const RunOptions& options, const Checkpoint& model, const LayerInput& input) {
  Adapters adapters;
  for (const std::string& directory : options.adapters) {
    const Lora lora = Lora::open(directory, model);
    require_adapted(lora, options.layer);
    adapters.all.push_back(lora.adapter(options.layer));
  }
  for (const LoraAdapter& adapter : adapters.all) adapters.pointers.push_back(&adapter);
  const std::int64_t count = std::ssize(adapters.all);
  for (std::size_t token = 0; token < input.adapter_ids.size(); ++token)
    if (input.adapter_ids[token] >= count)
      throw Error(ErrorKind::corrupt_file, {.code = "bad_adapter_id",
                                            .what = "the file names an adapter that is not given",
                                            .file = options.input,
                                            .tensor = "adapter_ids",
                                            .why = fmt::format("id {} at token {}; --lora gives {}",
                                                               input.adapter_ids[token], token, count),
                                            .todo = "Give one --lora an adapter, in the order of the ids"});
  if (count == 0) return adapters;
  adapters.ids = input.adapter_ids;
  if (adapters.ids.empty()) adapters.ids.resize(static_cast<std::size_t>(input.hidden.rows));
  return adapters;
}

/// The layer with room for the adapters' ranks.
LayerSpec with_ranks(LayerSpec spec, const Adapters& adapters) {
  for (const LoraAdapter& adapter : adapters.all) {
    spec.routed.lora_rank = std::max(spec.routed.lora_rank, LoraAdapter::largest_rank(adapter.routed));
    if (!spec.shared) continue;
    int& shared = spec.shared->experts.lora_rank;
    shared = std::max(shared, LoraAdapter::largest_rank(adapter.shared));
  }
  return spec;
}

Outputs compute(const Layer& layer, const LayerInput& input, const Adapters& adapters) {
  const LayerSpec& spec = layer.plan().request.layer;
  Outputs out(static_cast<std::size_t>(input.hidden.rows), spec);
  std::vector<std::byte> workspace(layer.workspace_bytes(std::clamp(input.hidden.rows, 1, kTokensAtOnce)));
  layer.run({.hidden = input.hidden,
             .routing = input.routing(),
             .router_logits = input.router_logits,
             .token_ids = input.token_ids,
             .adapters = adapters.pointers,
             .adapter_ids = adapters.ids,
             .experts_out = out.experts_out.data(),
             .block_out = out.block_out.data(),
             .topk_ids = out.topk_ids.data(),
             .topk_weights = out.topk_weights.data(),
             .workspace = workspace});
  return out;
}

std::vector<NamedTensor> tensors_of(const Outputs& out, std::int64_t tokens, const LayerSpec& spec) {
  using testing::tensor_of;
  const std::int64_t top_k = spec.routed.top_k, hidden = spec.hidden();
  return {tensor_of<std::int32_t>("topk_ids", DType::i32, {tokens, top_k}, out.topk_ids),
          tensor_of<float>("topk_weights", DType::f32, {tokens, top_k}, out.topk_weights),
          tensor_of<float>("experts_out", DType::f32, {tokens, hidden}, out.experts_out),
          tensor_of<float>("block_out", DType::f32, {tokens, hidden}, out.block_out)};
}

/// An output that would replace a file of the checkpoint is a slip of the hand.
void require_outside(const std::string& directory, const std::string& output) {
  std::error_code none;
  const std::filesystem::path folder = std::filesystem::absolute(output, none).parent_path();
  if (!std::filesystem::equivalent(folder, directory, none)) return;
  throw Error(ErrorKind::invalid_argument, {.code = "output_in_model",
                                            .what = "the output lies among the files of the checkpoint",
                                            .file = output,
                                            .why = "it could replace one of them, or be read as one",
                                            .todo = "give --output a path outside " + directory});
}

std::string result_text(const RunResult& result) {
  std::string text = fmt::format("layer {}, {} tokens, backend {}, routed by {}\n{}\n", result.layer,
                                 result.tokens, result.backend, result.routing, printable(result.output));
  for (const WrittenTensor& tensor : result.tensors)
    text += fmt::format("  {:<13} {} [{}]\n", tensor.name, tensor.dtype, fmt::join(tensor.shape, ", "));
  return text;
}

}  // namespace

int execute(const RunOptions& options, Form form) {
  require_backend_name(options.backend);
  const Checkpoint model = open_model(options.model);
  const int number = chosen_layers(model, options.layer).front();
  const LayerSpec published = model.spec(number);
  require_outside(model.info().directory, options.output);
  const TensorFile file = TensorFile::open(options.input);
  const LayerInput input = testing::read_layer_input(file, number, published);
  const LayerWeights weights = model.weights_to_pack(number);
  testing::check_token_ids(file, number, published, weights, input);
  const Adapters adapters = read_adapters(options, model, input);
  const LayerSpec spec = with_ranks(published, adapters);
  const Plan plan = choose({.layer = spec,
                            .device = testing::device_for(options.backend),
                            .tokens = {std::max(1, input.hidden.rows)},
                            .by_name = options.backend});
  CacheReport cache;
  const Outputs out = [&] {
    ProgressLine progress("packing");
    const Layer layer(plan, weights, {.progress = progress.callback(), .cache = options.cache});
    Outputs computed = compute(layer, input, adapters);
    cache = layer.cache();
    return computed;
  }();
  tell_notes(cache);

  const std::vector<NamedTensor> tensors = tensors_of(out, input.hidden.rows, spec);
  testing::write_safetensors(options.output, tensors);
  RunResult result{.model = model.info().directory,
                   .layer = number,
                   .backend = plan.chosen,
                   .tokens = input.hidden.rows,
                   .routing = input.routed_by(),
                   .output = options.output,
                   .cache = cache};
  for (const NamedTensor& tensor : tensors)
    result.tensors.push_back({tensor.name, std::string(name(tensor.dtype)), tensor.shape});
  print(form == Form::json ? to_json(result) : result_text(result));
  if (form == Form::text) suggest("sluice check " + options.model + " --layer " + std::to_string(number));
  return kOk;
}

}  // namespace sluice::tools
