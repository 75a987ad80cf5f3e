// SPDX-License-Identifier: Apache-2.0
// GPTQ, AWQ, AutoRound and compressed-tensors' pack-quantized, as their configurations state them. What
// decides how bytes are read is checked; a width, a layout or a version that is not known is refused.
#include "checkpoint/integer_quantisation.h"

#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/schemes/integers.h"

namespace sluice::checkpoint {
namespace {

constexpr IntRange kBits{1, 64};
constexpr IntRange kGroup{-1, 1'000'000};

/// Keys of one module, and of the whole model where the module has none.
struct Keys {
  const Config& own;
  const Config& model;
  const Config& with(std::string_view key) const { return own.has(key) ? own : model; }
};

/// A group size of -1 (and of 0, which some writers mean the same by) is the whole row.
int group_of(const Config& config) { return std::max(0, config.integer("group_size", kGroup)); }

int gptq_bits(const Config& config) {
  const int bits = config.integer("bits", kBits);
  if (bits != 2 && bits != 3 && bits != 4 && bits != 8)
    unknown_quantisation(config, "bits", {"2", "3", "4", "8"});
  return bits;
}

/// 1 where files store zero points minus one, as AutoGPTQ did.
int gptq_zero_offset(const Config& config) {
  const std::string format = config.text_or("checkpoint_format", "gptq");
  if (format == "gptq") return 1;
  if (format != "gptq_v2") unknown_quantisation(config, "checkpoint_format", {"gptq", "gptq_v2"});
  return 0;
}

IntegerStorage gptq_storage(const Keys& keys, int zero_offset) {
  return {.bits = gptq_bits(keys.with("bits")),
          .group = group_of(keys.with("group_size")),
          .symmetric = keys.with("sym").flag_or("sym", false),
          .act_order = keys.with("desc_act").flag_or("desc_act", false),
          .zero_offset = zero_offset};
}

int awq_bits(const Config& config) {
  if (config.integer("bits", kBits) != 4) unknown_quantisation(config, "bits", {"4"});
  return 4;
}

/// compressed-tensors: "group" (also "dynamic", or true) lists the columns' groups, "weight" (also "static")
/// quantised in another order and stores nothing of it.
bool listed_columns(const Config& weights) {
  const std::string order = weights.text_or_flag("actorder");
  if (order.empty() || order == "false" || order == "weight" || order == "static") return false;
  if (order != "group" && order != "dynamic" && order != "true")
    unknown_quantisation(weights, "actorder", {"group", "dynamic", "weight", "static"});
  return true;
}

/// The scheme that `make` makes, or one that refuses as it does once a module needs it.
template <class Make>
Scheme when_needed(Make make) {
  try {
    return make();
  } catch (const Error& error) {
    return refusing_scheme(error);
  }
}

/// An override of GPTQModel may say how many bits, not in what layout.
Scheme gptq_override(const Config& own, const Config& model, int zero_offset) {
  for (const std::string_view key : {"method", "quant_method", "format", "checkpoint_format", "pack_dtype"})
    if (own.has(key)) own.refuse("unknown_quantisation", key, "overrides of the layout are not read");
  return gptq_integers(gptq_storage({own, model}, zero_offset));
}

/// AutoRound's names: whole ones, which name a layer and decide first, or expressions that may match
/// anywhere.
bool is_whole_name(const std::string& name) {
  return name.find("layers.") != name.npos && name.find_first_of("*+?^$()[]{}|\\") == name.npos;
}

Scheme auto_round_scheme(const Keys& keys, const std::string& packing) {
  if (keys.own.text_or("data_type", "int") != "int") unknown_quantisation(keys.own, "data_type", {"int"});
  if (packing.ends_with("awq"))
    return awq_integers({.bits = awq_bits(keys.with("bits")),
                         .group = group_of(keys.with("group_size")),
                         .symmetric = keys.with("sym").flag_or("sym", false)});
  return gptq_integers(gptq_storage(keys, packing == "auto_round" ? 0 : 1));
}

}  // namespace

Quantisation read_gptq(const Config& config) {
  if (config.flag_or("is_marlin_format", false)) unknown_quantisation(config, "is_marlin_format", {"false"});
  if (config.text_or("pack_dtype", "int32") != "int32") unknown_quantisation(config, "pack_dtype", {"int32"});
  const int zero_offset = gptq_zero_offset(config);
  Quantisation read{.not_converted = modules_not_converted(config)};
  if (const auto dynamic = config.object("dynamic"))
    for (const std::string& key : dynamic->keys_as_written()) {  // the first that matches decides
      const bool left_out = key.starts_with("-:"), marked = left_out || key.starts_with("+:");
      ModuleRules modules({"re:" + key.substr(marked ? 2 : 0)}, config.file_name());
      if (left_out)
        read.schemes.push_back({std::move(modules), &schemes::kPlain});
      else
        read.add(std::move(modules),
                 when_needed([&] { return gptq_override(*dynamic->object(key), config, zero_offset); }));
    }
  read.add(ModuleRules::everything(), gptq_integers(gptq_storage({config, config}, zero_offset)));
  read.words = read.made.back()->name;
  return read;
}

Quantisation read_awq(const Config& config) {
  std::string version = config.text_or("version", "gemm");
  std::transform(version.begin(), version.end(), version.begin(), [](char letter) {
    return letter >= 'A' && letter <= 'Z' ? char(letter - 'A' + 'a') : letter;
  });
  if (version != "gemm") unknown_quantisation(config, "version", {"gemm"});
  if (!config.flag_or("zero_point", true)) unknown_quantisation(config, "zero_point", {"true"});
  Quantisation read{.not_converted = modules_not_converted(config)};
  read.add(ModuleRules::everything(), awq_integers({.bits = awq_bits(config), .group = group_of(config)}));
  read.words = read.made.back()->name;
  return read;
}

Quantisation read_auto_round(const Config& config) {
  if (config.text_or("data_type", "int") != "int") unknown_quantisation(config, "data_type", {"int"});
  const std::string packing = config.text("packing_format");
  if (packing != "auto_round" && packing != "auto_round:auto_gptq" && packing != "auto_round:auto_awq")
    unknown_quantisation(config, "packing_format",
                         {"auto_round", "auto_round:auto_gptq", "auto_round:auto_awq"});
  Quantisation read{.not_converted = modules_not_converted(config)};
  read.named = ModuleMap<const Scheme*>(true);
  if (const auto extra = config.object("extra_config"))
    for (const std::string& key : extra->keys_as_written()) {
      const Config own = *extra->object(key);
      if (own.keys().empty()) continue;  // says nothing, also not that later expressions are not tried
      const bool plain = own.integer_or("bits", kBits, 4) >= 16;
      const Scheme* const scheme = plain ? &schemes::kPlain : read.keep(when_needed([&] {
        return auto_round_scheme({own, config}, packing);
      }));
      if (is_whole_name(key))
        read.named.set(key, scheme);
      else
        read.schemes.push_back({{{"re:.*?(?:" + key + ")"}, config.file_name()}, scheme});
    }
  read.add(ModuleRules::everything(), auto_round_scheme({config, config}, packing));
  read.words = fmt::format("{} {}", packing, read.made.back()->name);
  return read;
}

Scheme read_pack_quantized(const Config& group) {
  const auto weights = group.object("weights");
  if (!weights)
    group.refuse("unknown_quantisation", "weights", "a config group without weights says nothing");
  if (weights->text("type") != "int") unknown_quantisation(*weights, "type", {"int"});
  const int bits = weights->integer("num_bits", kBits);
  if (bits < 2 || bits > 8) unknown_quantisation(*weights, "num_bits", {"2 to 8"});
  const std::string strategy = weights->text("strategy");
  if (strategy != "group" && strategy != "channel")
    unknown_quantisation(*weights, "strategy", {"group", "channel"});
  return packed_integers({.bits = bits,
                          .group = strategy == "channel" ? 0 : group_of(*weights),
                          .symmetric = weights->flag_or("symmetric", true),
                          .act_order = listed_columns(*weights)});
}

}  // namespace sluice::checkpoint
