// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/lora_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/error.h"

namespace sluice::checkpoint {
namespace {

constexpr IntRange kRank{1, 65'536};

[[noreturn]] void refuse_variant(const Config& config, std::string_view key, std::string_view why) {
  fail(ErrorKind::unsupported, {.code = "lora_variant",
                                .what = fmt::format("the adapter is not a plain LoRA: it has {}", key),
                                .file = config.file_name(),
                                .why = std::string(why),
                                .todo = "Merge the adapter into the model, or train a plain one"});
}

void check_plain(const Config& config) {
  const std::string type = config.text("peft_type");
  if (type != "LORA") refuse_variant(config, "peft_type " + type, "only LORA adds scale * B A to a weight");
  for (const char* key : {"use_dora", "use_qalora", "lora_bias", "fan_in_fan_out"})
    if (config.flag_or(key, false)) refuse_variant(config, key, "its layers do more than add scale * B A");
  for (const char* key : {"alora_invocation_tokens", "layer_replication", "kasa_config"})
    if (config.has(key)) refuse_variant(config, key, "its layers do more than add scale * B A");
}

/// Initialisations that take the adapter's start out of the model's own weights: the sum holds for what they
/// left of the weights, not for the checkpoint's.
void check_initialisation(const Config& config, const Json& json) {
  const Json* value = json.find("init_lora_weights");
  const auto* text = value == nullptr ? nullptr : std::get_if<std::string>(&value->value);
  if (text == nullptr) return;
  for (const std::string_view changing : {"pissa", "olora", "corda", "loftq", "lora_ga"})
    if (text->starts_with(changing))
      refuse_variant(config, fmt::format("init_lora_weights {}", changing),
                     "it belongs to weights that the initialisation changed, not to the checkpoint's");
}

/// Nothing unless `version` starts with two numbers: PEFT writes its version since 0.18.
std::optional<bool> since_0_19(const std::string& version) {
  int major = 0, minor = 0;
  const char* const end = version.data() + version.size();
  const auto [dot, bad] = std::from_chars(version.data(), end, major);
  if (bad != std::errc{} || dot == end || *dot != '.') return std::nullopt;
  if (std::from_chars(dot + 1, end, minor).ec != std::errc{}) return std::nullopt;
  return major > 0 || minor >= 19;
}

}  // namespace

LoraConfig::LoraConfig(const Json& json, const std::string& file_name) : file_name_(file_name) {
  const Config config(json, file_name);
  check_plain(config);
  check_initialisation(config, json);
  rank_ = config.integer("r", kRank);
  if (!config.has("lora_alpha"))
    config.refuse("config_missing_key", "lora_alpha", "the scale follows from it");
  alpha_ = config.number_or("lora_alpha", 0, 0);
  rslora_ = config.flag_or("use_rslora", false);
  if (const auto patterns = config.object("rank_pattern"))
    for (const std::string& key : patterns->keys())
      ranks_.push_back({key, rule(key), static_cast<double>(patterns->integer(key, kRank))});
  if (const auto patterns = config.object("alpha_pattern"))
    for (const std::string& key : patterns->keys())
      alphas_.push_back({key, rule(key), patterns->number_or(key, 0, 0)});
  parameters_ = config.texts_or_empty("target_parameters");
  stacks_read_inputs_ = since_0_19(config.text_or("peft_version", ""));
}

/// PEFT matches a key against the end of a module's name, from a dot or from its start.
Pattern LoraConfig::rule(const std::string& key) const {
  return Pattern("(.*\\.)?(" + key + ")$", file_name_);
}

/// PEFT takes the first key that matches; the order of keys is lost in JSON, so they must agree.
double LoraConfig::value(const std::vector<Rule>& rules, const std::string& module, double otherwise) const {
  const Rule* found = nullptr;
  for (const Rule& rule : rules) {
    if (!rule.pattern.matches_start(module)) continue;
    require(found == nullptr || found->value == rule.value, ErrorKind::corrupt_file, [&] {
      return ErrorInfo{.code = "config_contradiction",
                       .what = fmt::format("two patterns give {} different numbers", module),
                       .file = file_name_,
                       .why = fmt::format("\"{}\" says {}, \"{}\" says {}", found->key, found->value,
                                          rule.key, rule.value),
                       .todo = "Leave one of them in rank_pattern or alpha_pattern"};
    });
    found = &rule;
  }
  return found == nullptr ? otherwise : found->value;
}

int LoraConfig::rank(const std::string& module) const {
  return static_cast<int>(value(ranks_, module, rank_));
}

float LoraConfig::scale(const std::string& module) const {
  const double alpha = value(alphas_, module, alpha_), rank = this->rank(module);
  return static_cast<float>(alpha / (rslora_ ? std::sqrt(rank) : rank));
}

bool LoraConfig::targets(std::string_view parameter) const {
  return std::ranges::any_of(parameters_, [&](const std::string& target) {
    return parameter == target || parameter.ends_with("." + target);
  });
}

}  // namespace sluice::checkpoint
