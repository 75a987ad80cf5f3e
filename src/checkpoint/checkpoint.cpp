// SPDX-License-Identifier: Apache-2.0
// Checkpoint: a directory, a configuration, a family, and the layers that follow from them; or a GGUF file,
// which holds all of that.
#include "sluice/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "checkpoint/families/family.h"
#include "checkpoint/gguf_layers.h"
#include "checkpoint/json.h"
#include "checkpoint/layer_builder.h"
#include "checkpoint/model_directory.h"
#include "checkpoint/model_files.h"
#include "checkpoint/text.h"
#include "core/error.h"

namespace sluice {

using namespace checkpoint;

struct Checkpoint::State {
  ModelFiles files;
  Blueprint model;
  struct Gguf {
    GgufFiles files;
    GgufPlan plan;
  };
  std::optional<Gguf> gguf;      // in place of the two above
  std::vector<LayerSpec> specs;  // in the order of the model's MoE layers
  ModelInfo info;

  std::size_t position(int layer) const;
  void check_layers();
  LayerParts build(std::size_t position, TensorReader& reader) const;
  /// `owner` is this.
  static LayerWeights weights(const std::shared_ptr<const State>& owner, int layer, Depth depth,
                              std::vector<ErrorInfo>* faults);
};

namespace {

constexpr std::size_t kConfigBytes = 64'000'000;  // lists of modules make some of them megabytes long

const Family& family_of(const Config& config) {
  const std::string type = config.text("model_type");
  for (const Family* family : families())
    if (family->model_type == type) return *family;
  return families_list::kGeneric;
}

/// A configuration of a model directory, with what its views point into.
struct ConfigFile {
  std::shared_ptr<const MappedFile> file;
  Json json;

  ConfigFile(const ModelDirectory& directory, std::string_view name)
      : file(directory.open(name)), json(parse_json(text_of(*file, kConfigBytes), file->path())) {}
  Config config() const { return {json, file->path()}; }
};

/// ModelOpt's own file, where config.json says nothing about quantisation.
std::optional<ConfigFile> modelopt_file(const ModelDirectory& directory, const Config& config) {
  constexpr std::string_view kName = "hf_quant_config.json";
  if (config.has("quantization_config") || !directory.has(kName)) return std::nullopt;
  return std::optional<ConfigFile>(std::in_place, directory, kName);
}

/// How far gate and up second scales are apart: kernels that take one for both would be wrong.
struct ScaleSpread {
  int experts = 0, differing = 0;
  float largest_ratio = 1;

  void add(const std::vector<ExpertWeights>& all) {
    for (const ExpertWeights& expert : all) {
      ++experts;
      if (!expert.gate || expert.gate->second_scale == expert.up.second_scale) continue;
      ++differing;
      const float ratio = expert.gate->second_scale / expert.up.second_scale;
      largest_ratio = std::max({largest_ratio, ratio, 1 / ratio});
    }
  }
};

std::string list_of(const Config& config, std::string_view key) {
  const auto texts = config.texts_or_empty(key);
  return texts.empty() ? "" : printable(texts.front());
}

}  // namespace

LayerParts Checkpoint::State::build(std::size_t position, TensorReader& reader) const {
  if (gguf) return build_gguf_layer(gguf->files, gguf->plan.moe_layers[position], reader.depth());
  return build_layer(reader, model.moe_layers[position], model.quantisation);
}

/// Builds every layer from the headers: what is wrong with them is found before anything is packed.
void Checkpoint::State::check_layers() {
  ScaleSpread spread;
  int activation_scales = 0;
  for (std::size_t i = 0; i < info.moe_layers.size(); ++i) {
    TensorReader reader(files, Depth::headers);
    LayerParts layer = build(i, reader);
    spread.add(layer.weights.routed);
    activation_scales += layer.activation_scales;
    specs.push_back(std::move(layer.spec));
  }
  auto& notes = info.notes;
  if (spread.differing > 0)
    notes.push_back(
        fmt::format("second scales of gate and up differ in {} of {} experts, by up to {:.4g} times",
                    spread.differing, spread.experts, spread.largest_ratio));
  if (activation_scales > 0)
    notes.push_back(fmt::format(
        "{} scales of activations are there and not used: activations are not quantised", activation_scales));
}

std::size_t Checkpoint::State::position(int layer) const {
  const auto at = std::find(info.moe_layers.begin(), info.moe_layers.end(), layer);
  require(at != info.moe_layers.end(), ErrorKind::invalid_argument, [&] {
    return ErrorInfo{
        .code = "no_such_layer",
        .what = fmt::format("layer {} is no MoE layer of this model", layer),
        .file = info.directory,
        .why = info.moe_layers.empty()
                   ? "it has none"
                   : fmt::format("it has {} MoE layers, the first is {}, the last {}", info.moe_layers.size(),
                                 info.moe_layers.front(), info.moe_layers.back()),
        .todo = "Give the number of a layer that ModelInfo::moe_layers lists"};
  });
  return static_cast<std::size_t>(at - info.moe_layers.begin());
}

namespace {

/// "GGUF q4_k/q4_k/q6_k, q6_k": the storage of all layers' experts, each once.
std::string gguf_storage(const std::vector<LayerSpec>& specs) {
  std::vector<std::string> all;
  for (const LayerSpec& spec : specs)
    if (std::string one = storage_text(spec.routed.formats);
        std::find(all.begin(), all.end(), one) == all.end())
      all.push_back(std::move(one));
  return fmt::format("GGUF {}", fmt::join(all, ", "));
}

/// What is checked of specs from keys, which may contradict each other in ways that no single key shows.
void validate_gguf(const std::vector<LayerSpec>& specs, const std::string& file) {
  for (const LayerSpec& spec : specs) try {
      validate(spec);
    } catch (const Error& error) {
      fail(ErrorKind::corrupt_file,
           {.code = "gguf_contradiction",
            .what = "the file's keys do not make sense together",
            .file = file,
            .why = error.info().why,
            .todo = "Fetch the file again; if it is as published, its keys are wrong"});
    }
}

}  // namespace

std::shared_ptr<Checkpoint::State> Checkpoint::open_gguf(const std::string& path) {
  auto state = std::make_shared<State>();
  GgufFiles files = GgufFiles::open(path);
  GgufPlan plan = plan_gguf(files);
  state->info = {.directory = path,
                 .family = plan.family,
                 .architecture = plan.architecture,
                 .quantisation = {},
                 .layers = plan.layers,
                 .moe_layers = {},
                 .files = files.files(),
                 .file_bytes = files.file_bytes(),
                 .tensors = static_cast<std::int64_t>(files.tensors().size()),
                 .notes = files.notes()};
  for (const GgufLayerPlan& layer : plan.moe_layers) state->info.moe_layers.push_back(layer.layer);
  auto& notes = state->info.notes;
  notes.insert(notes.end(), plan.notes.begin(), plan.notes.end());
  state->gguf = State::Gguf{std::move(files), std::move(plan)};
  state->check_layers();
  validate_gguf(state->specs, path);
  state->info.quantisation = gguf_storage(state->specs);
  return state;
}

LayerWeights Checkpoint::State::weights(const std::shared_ptr<const State>& owner, int layer, Depth depth,
                                        std::vector<ErrorInfo>* faults) {
  const std::size_t position = owner->position(layer);
  owner->files.check_unchanged();
  if (owner->gguf) owner->gguf->files.check_unchanged();
  TensorReader reader(owner->files, depth, faults);
  LayerWeights weights = owner->build(position, reader).weights;
  using Owners = std::pair<std::shared_ptr<const void>, std::shared_ptr<const void>>;
  weights.owner = std::make_shared<Owners>(owner, reader.owned());
  weights.files = owner->gguf ? owner->gguf->files.sources() : owner->files.sources();
  return weights;
}

Checkpoint Checkpoint::open(const std::string& model, const std::string& cache_root) {
  if (GgufFiles::is_one(model)) {
    Checkpoint opened;
    opened.state_ = open_gguf(model);
    return opened;
  }
  const ModelDirectory directory = ModelDirectory::find(model, cache_root);
  if (!directory.has("config.json")) {
    refuse_gguf_alone(directory, "config.json");
    fail(ErrorKind::io, {.code = "no_config",
                         .what = "there is no config.json",
                         .file = directory.path(),
                         .todo = "Give a directory with config.json and .safetensors files"});
  }
  const ConfigFile file(directory, "config.json");
  const Config config = file.config();
  const Family& family = family_of(config);

  auto state = std::make_shared<State>();
  state->files = ModelFiles::open(directory);
  const auto modelopt = modelopt_file(directory, config);
  state->model = family.read({.config = config,
                              .modelopt = modelopt ? modelopt->config().object("quantization") : std::nullopt,
                              .files = state->files});
  state->info = {.directory = directory.path(),
                 .family = std::string(family.model_type),
                 .architecture = list_of(config, "architectures"),
                 .quantisation = state->model.quantisation.words,
                 .layers = state->model.layers,
                 .moe_layers = {},
                 .files = state->files.files(),
                 .file_bytes = state->files.file_bytes(),
                 .tensors = static_cast<std::int64_t>(state->files.tensors().size()),
                 .notes = state->files.notes()};
  auto& notes = state->info.notes;
  notes.insert(notes.end(), state->model.notes.begin(), state->model.notes.end());
  if (config.has("auto_map")) notes.push_back("config.json has auto_map; code of a model is never run");
  for (const LayerBlueprint& blueprint : state->model.moe_layers)
    state->info.moe_layers.push_back(blueprint.layer);
  state->check_layers();

  Checkpoint opened;
  opened.state_ = std::move(state);
  return opened;
}

const ModelInfo& Checkpoint::info() const { return state_->info; }

LayerSpec Checkpoint::spec(int layer) const { return state_->specs[state_->position(layer)]; }

LayerWeights Checkpoint::weights(int layer) const {
  return State::weights(state_, layer, Depth::values, nullptr);
}

LayerWeights Checkpoint::weights_to_pack(int layer) const {
  std::vector<ErrorInfo> faults;
  LayerWeights weights = unchecked_weights(layer, faults);
  const auto check = [state = state_, layer] { State::weights(state, layer, Depth::values, nullptr); };
  if (!faults.empty()) check();  // throws what they are
  weights.check = check;
  return weights;
}

LayerWeights Checkpoint::unchecked_weights(int layer, std::vector<ErrorInfo>& faults) const {
  return State::weights(state_, layer, Depth::unchecked_scales, &faults);
}

namespace {

bool within(const std::byte* address, const std::byte* begin, std::size_t bytes) {
  return !std::less<>()(address, begin) && std::less<>()(address, begin + bytes);
}

}  // namespace

TensorPlace Checkpoint::place(const std::byte* address) const {
  for (const ModelTensor& tensor : state_->files.tensors())
    if (within(address, tensor.view->data, tensor.view->bytes()))
      return {*tensor.file, printable(tensor.name)};
  if (state_->gguf)
    for (const GgufTensor& tensor : state_->gguf->files.tensors())
      if (within(address, tensor.data, tensor.bytes)) return {*tensor.file, printable(tensor.name)};
  return {};
}

std::int64_t Checkpoint::layer_bytes(int layer) const {
  const std::size_t position = state_->position(layer);
  if (state_->gguf) return gguf_layer_bytes(state_->gguf->files, layer);
  const LayerBlueprint& blueprint = state_->model.moe_layers[position];
  std::int64_t bytes = 0;
  for (const std::string& part : blueprint.whole_parts())
    for (const ModelTensor& tensor : state_->files.below(part))
      bytes += static_cast<std::int64_t>(tensor.view->bytes());
  return bytes;
}

}  // namespace sluice
