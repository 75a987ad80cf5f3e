// SPDX-License-Identifier: Apache-2.0
// One reader a quant_method. Each checks the fields that decide how bytes are read and refuses what it does
// not know: a variant read as another one gives weights that look right and are not.
#include "checkpoint/quantisation.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "checkpoint/integer_quantisation.h"
#include "checkpoint/text.h"
#include "core/error.h"

namespace sluice::checkpoint {
namespace {

constexpr IntRange kSmall{0, 1'000'000};

std::string joined(std::initializer_list<std::string_view> names) {
  std::string text;
  for (const std::string_view name : names) text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

Quantisation everywhere(const Scheme& scheme, std::string words, ModuleRules not_converted = {}) {
  return {.words = std::move(words),
          .not_converted = std::move(not_converted),
          .schemes = {{ModuleRules::everything(), &scheme}}};
}

Quantisation read_mxfp4(const Config& config) {
  return everywhere(schemes::kMxfp4Blocks, "mxfp4", modules_not_converted(config));
}

Quantisation read_fp8(const Config& config) {
  const std::string fmt = config.text_or("fmt", "e4m3");
  if (fmt != "e4m3" && fmt != "float8_e4m3fn") unknown_quantisation(config, "fmt", {"e4m3", "float8_e4m3fn"});
  const auto block = config.integers_or_empty("weight_block_size", kSmall);
  if (block.empty()) return everywhere(schemes::kFp8Tensor, "fp8", modules_not_converted(config));
  if (block == std::vector<std::int64_t>{32, 32})
    return everywhere(schemes::kFp8Tiles32, "fp8 in tiles of 32 x 32", modules_not_converted(config));
  if (block != std::vector<std::int64_t>{128, 128})
    unknown_quantisation(config, "weight_block_size", {"[128, 128]", "[32, 32]"});
  return everywhere(schemes::kFp8Block, "fp8 in blocks of 128 x 128", modules_not_converted(config));
}

Quantisation read_mxfp8(const Config& config) {
  const auto block = config.integers_or_empty("weight_block_size", kSmall);
  if (!block.empty() && block != std::vector<std::int64_t>{1, 32})
    unknown_quantisation(config, "weight_block_size", {"[1, 32]"});
  return everywhere(schemes::kMxfp8, "mxfp8", modules_not_converted(config));
}

const Scheme& float_scheme(const Config& weights) {
  if (weights.integer_or("num_bits", kSmall, 8) != 8) unknown_quantisation(weights, "num_bits", {"8"});
  const std::string strategy = weights.text("strategy");
  if (strategy == "tensor") return schemes::kFloatTensor;
  if (strategy == "channel") return schemes::kFloatChannel;
  if (strategy != "block") unknown_quantisation(weights, "strategy", {"tensor", "channel", "block"});
  if (weights.integers_or_empty("block_structure", kSmall) != std::vector<std::int64_t>{128, 128})
    unknown_quantisation(weights, "block_structure", {"[128, 128]"});
  return schemes::kFloatBlock;
}

/// The scheme of one config group of compressed-tensors. `outer` holds the format where the group has none.
const Scheme& compressed_scheme(const Config& outer, const Config& group) {
  struct Grouped {
    std::string_view format;
    int num_bits, group_size;
    std::string_view strategy;
    const Scheme& scheme;
  };
  static const Grouped kGrouped[] = {{"nvfp4-pack-quantized", 4, 16, "tensor_group", schemes::kPackedNvfp4},
                                     {"mxfp4-pack-quantized", 4, 32, "group", schemes::kPackedMxfp4},
                                     {"mxfp8-quantized", 8, 32, "group", schemes::kFloatMxfp8}};
  const Config& named = group.has("format") ? group : outer;
  const std::string format = named.text("format");
  const auto weights = group.object("weights");
  if (!weights)
    group.refuse("unknown_quantisation", "weights", "a config group without weights says nothing");
  if (!weights->flag_or("symmetric", true))
    weights->refuse("unknown_quantisation", "symmetric", "zero points of floats are not read");
  if (weights->text_or("type", "float") != "float") unknown_quantisation(*weights, "type", {"float"});
  weights->need_nothing("actorder", "columns in another order are not read");
  if (format == "float-quantized") return float_scheme(*weights);
  for (const Grouped& known : kGrouped) {
    if (known.format != format) continue;
    if (weights->integer_or("group_size", kSmall, known.group_size) != known.group_size)
      weights->refuse("unknown_quantisation", "group_size",
                      fmt::format("{} has groups of {}", format, known.group_size));
    if (weights->integer_or("num_bits", kSmall, known.num_bits) != known.num_bits)
      weights->refuse("unknown_quantisation", "num_bits",
                      fmt::format("{} has {} bits", format, known.num_bits));
    if (weights->text_or("strategy", known.strategy) != known.strategy)
      unknown_quantisation(*weights, "strategy", {known.strategy});
    return known.scheme;
  }
  unknown_quantisation(named, "format",
                       {"nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized", "float-quantized",
                        "pack-quantized"});
}

/// The scheme of one config group. What it says of activations is not read: they are not quantised here.
const Scheme* group_scheme(const Config& outer, const Config& group, Quantisation& read) {
  if (!group.has("weights")) return &schemes::kPlain;
  const Config& named = group.has("format") ? group : outer;
  try {
    if (named.text("format") == "pack-quantized") return read.keep(read_pack_quantized(group));
    return &compressed_scheme(outer, group);
  } catch (const Error& error) {
    return read.keep(refusing_scheme(error));
  }
}

/// Targets are names, expressions, or classes of modules. Of all groups names decide first, then expressions
/// in order of their letters, then classes (compressed-tensors, match_targets); of the same target twice the
/// last. Expert matrices are Linear modules.
void add_targets(const std::map<std::string, const Scheme*>& targets, const std::string& file_name,
                 Quantisation& read) {
  for (const auto& [target, scheme] : targets) {
    if (target.starts_with("re:")) read.schemes.push_back({{{target}, file_name, Matching::exact}, scheme});
    read.named.set(target, scheme);
  }
  for (const char* kind : {"Linear", "Module"})
    if (const auto found = targets.find(kind); found != targets.end())
      read.schemes.push_back({ModuleRules::everything(), found->second});
}

Quantisation read_compressed_tensors(const Config& config) {
  config.need_nothing("transform_config", "weights that were rotated need inputs that are rotated too");
  const auto sparsity = config.object("sparsity_config");
  if (sparsity && sparsity->text_or("format", "dense") != "dense")
    unknown_quantisation(*sparsity, "format", {"dense"});
  if (config.text_or("quantization_status", "compressed") != "compressed")
    unknown_quantisation(config, "quantization_status", {"compressed"});
  Quantisation read{.words = "compressed-tensors",
                    .not_converted = modules_not_converted(config, Matching::exact)};
  const std::vector<Config> groups = config.objects("config_groups");
  if (groups.empty()) config.refuse("unknown_quantisation", "config_groups", "there is no config group");
  std::map<std::string, const Scheme*> targets;
  for (const Config& group : groups) {
    const Scheme* const scheme = group_scheme(config, group, read);
    read.words += fmt::format("{} {}", &group != &groups.front() ? "," : "", scheme->name);
    for (const std::string& target : group.texts_or_empty("targets")) targets[target] = scheme;
  }
  add_targets(targets, config.file_name(), read);
  return read;
}

/// In upper case, as older ModelOpt did not write them.
std::string algorithm_of(const Config& config) {
  std::string algorithm = config.text("quant_algo");
  std::transform(algorithm.begin(), algorithm.end(), algorithm.begin(), [](char letter) {
    return letter >= 'a' && letter <= 'z' ? char(letter - 'a' + 'A') : letter;
  });
  return algorithm;
}

const Scheme& modelopt_scheme(const Config& config) {
  const std::string algorithm = algorithm_of(config);
  if (algorithm == "NVFP4" || algorithm == "W4A16_NVFP4") {
    if (config.integer_or("group_size", kSmall, 16) != 16) unknown_quantisation(config, "group_size", {"16"});
    return schemes::kModeloptNvfp4;
  }
  if (algorithm == "FP8") return schemes::kModeloptFp8;
  if (algorithm == "FP8_PER_CHANNEL_PER_TOKEN") return schemes::kModeloptFp8Channel;
  if (algorithm == "FP8_PB_WO") return schemes::kModeloptFp8Block;
  if (algorithm == "MXFP8") return schemes::kFloatMxfp8;
  unknown_quantisation(
      config, "quant_algo",
      {"NVFP4", "W4A16_NVFP4", "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "MXFP8", "MIXED_PRECISION"});
}

/// `quantized_layers` of MIXED_PRECISION: names of modules, or of what is above them. What stands there of
/// other modules than experts need not be known.
Quantisation read_modelopt_layers(const Config& config, const Config& layers) {
  Quantisation read{.words = "modelopt MIXED_PRECISION",
                    .not_converted = modules_not_converted(config, Matching::wildcards),
                    .named = ModuleMap<const Scheme*>(true)};
  std::map<std::string, const Scheme*> unknown;
  for (const std::string& module : layers.keys()) {
    const Config layer = *layers.object(module);
    try {
      read.named.set(module, &modelopt_scheme(layer));
    } catch (const Error& error) {
      const Scheme*& scheme = unknown[layer.text_or("quant_algo", "")];
      if (scheme == nullptr) scheme = read.keep(refusing_scheme(error));
      read.named.set(module, scheme);
    }
  }
  return read;
}

/// In config.json: either the object of hf_quant_config.json below "quantization", or its keys themselves.
Quantisation read_modelopt(const Config& config) {
  const auto inner = config.object("quantization");
  return read_modelopt_quantisation(inner ? *inner : config);
}

[[noreturn]] void refuse_for(const std::string& module, const Error& error) {
  ErrorInfo info = error.info();
  info.tensor = printable(module);
  fail(error.kind(), std::move(info));
}

/// One quant_method.
struct Method {
  std::string_view name;
  Quantisation (*read)(const Config&);
};

constexpr Method kMethods[] = {
    {"mxfp4", read_mxfp4},
    {"fp8", read_fp8},
    {"mxfp8", read_mxfp8},
    {"compressed-tensors", read_compressed_tensors},
    {"modelopt", read_modelopt},
    {"modelopt_fp4", read_modelopt},
    {"modelopt_mixed", read_modelopt},
    {"gptq", read_gptq},
    {"awq", read_awq},
    {"auto-round", read_auto_round},
    {"intel/auto-round", read_auto_round},
};

}  // namespace

void unknown_quantisation(const Config& config, std::string_view key,
                          std::initializer_list<std::string_view> known) {
  config.refuse("unknown_quantisation", key, fmt::format("known are: {}", joined(known)),
                "Use a checkpoint of this model in one of these, or the unquantised one");
}

ModuleRules modules_not_converted(const Config& config, Matching matching) {
  std::vector<std::string> rules;
  for (const std::string_view key : {"modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules"})
    for (std::string& rule : config.texts_or_empty(key)) rules.push_back(std::move(rule));
  return {rules, config.file_name(), matching};
}

Quantisation read_modelopt_quantisation(const Config& config) {
  if (algorithm_of(config) == "MIXED_PRECISION") {
    const auto layers = config.object("quantized_layers");
    if (!layers)
      config.refuse("unknown_quantisation", "quantized_layers", "MIXED_PRECISION lists its modules there");
    return read_modelopt_layers(config, *layers);
  }
  const Scheme& scheme = modelopt_scheme(config);
  return everywhere(scheme, fmt::format("modelopt {}", scheme.name),
                    modules_not_converted(config, Matching::wildcards));
}

Scheme refusing_scheme(const Error& error) {
  return {.name = "one that is not read",
          .matrix = [error](TensorReader&, const std::string& module, MatrixShape) -> WeightMatrix {
            refuse_for(module, error);
          },
          .stack = [error](TensorReader&, const std::string& module,
                           StackShape) -> std::vector<WeightMatrix> { refuse_for(module, error); }};
}

Quantisation read_quantisation(const Config& config) {
  const auto quantisation = config.object("quantization_config");
  if (!quantisation) return {};
  const std::string method = quantisation->text("quant_method");
  for (const Method& known : kMethods)
    if (known.name == method) return known.read(*quantisation);
  unknown_quantisation(
      *quantisation, "quant_method",
      {"mxfp4", "fp8", "mxfp8", "compressed-tensors", "modelopt", "gptq", "awq", "auto-round"});
}

const Scheme* Quantisation::keep(Scheme scheme) {
  made.push_back(std::make_shared<const Scheme>(std::move(scheme)));
  return made.back().get();
}

void Quantisation::add(ModuleRules modules, Scheme scheme) {
  schemes.push_back({std::move(modules), keep(std::move(scheme))});
}

const Scheme& Quantisation::of(std::string_view module) const {
  if (not_converted.match(module)) return schemes::kPlain;
  if (const auto scheme = named.find(module)) return **scheme;
  for (const Assignment& assignment : schemes)
    if (assignment.modules.match(module)) return *assignment.scheme;
  return schemes::kPlain;
}

}  // namespace sluice::checkpoint
