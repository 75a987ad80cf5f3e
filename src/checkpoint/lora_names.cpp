// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/lora_names.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <span>
#include <vector>

namespace sluice::checkpoint {
namespace {

using Parts = std::vector<std::string_view>;

Parts split(std::string_view text) {
  Parts parts;
  while (true) {
    const std::size_t dot = text.find('.');
    parts.push_back(text.substr(0, dot));
    if (dot == text.npos) return parts;
    text.remove_prefix(dot + 1);
  }
}

std::string joined(const Parts& parts) {
  std::string text;
  for (const std::string_view part : parts) (text += text.empty() ? "" : ".") += part;
  return text;
}

int number(std::string_view text) {
  int value = -1;
  const auto [end, bad] = std::from_chars(text.data(), text.data() + text.size(), value);
  return bad == std::errc{} && end == text.data() + text.size() ? value : -1;
}

bool is_one_of(std::string_view text, std::initializer_list<std::string_view> all) {
  return std::find(all.begin(), all.end(), text) != all.end();
}

LoraTarget projection(std::string_view name) {
  if (is_one_of(name, {"gate_proj", "w1"})) return LoraTarget::gate;
  if (is_one_of(name, {"up_proj", "w3"})) return LoraTarget::up;
  if (is_one_of(name, {"down_proj", "w2"})) return LoraTarget::down;
  return LoraTarget::unknown;
}

/// `inside` is what follows the block's own name: {"experts", "7", "gate_proj"}.
void classify(std::span<const std::string_view> inside, LoraName& name) {
  const std::size_t count = inside.size();
  name.target = LoraTarget::unknown;
  if (count == 0) return;
  if (is_one_of(inside[0], {"gate", "router", "shared_expert_gate"})) name.target = LoraTarget::router;
  if (is_one_of(inside[0], {"shared_expert", "shared_experts"}) && count == 2)
    name.target = projection(inside[1]);
  if (inside[0] != "experts") return;
  if (count == 1) name.target = LoraTarget::stack;
  if (count == 2 && inside[1] == "base_layer") name.target = LoraTarget::inner_stack;
  if (count == 3 && number(inside[1]) >= 0) {
    name.expert = number(inside[1]);
    name.target = projection(inside[2]);
  }
}

}  // namespace

LoraName parse_lora_name(std::string_view name) {
  constexpr std::string_view kWrapper = "base_model.model.";
  LoraName parsed;
  if (name.starts_with(kWrapper)) name.remove_prefix(kWrapper.size());
  const std::size_t leaf = std::min(name.find(".lora_"), name.size());
  parsed.leaf = name.substr(std::min(leaf + 1, name.size()));
  Parts parts = split(name.substr(0, leaf));

  const auto layers = std::find(parts.begin(), parts.end(), "layers");
  // Behind it: the layer's number, the block ("mlp", "block_sparse_moe", "ffn", "feed_forward", ...).
  const std::ptrdiff_t behind = parts.end() - layers;
  if (behind >= 3 && number(layers[1]) >= 0) {
    parsed.layer = number(layers[1]);
    const std::span<const std::string_view> inside(layers + 3, parts.end());
    const bool moe = is_one_of(layers[2], {"mlp", "block_sparse_moe", "ffn", "feed_forward", "moe"}) ||
                     std::find(inside.begin(), inside.end(), "experts") != inside.end();
    if (moe) classify(inside, parsed);
  }
  std::erase(parts, "base_layer");
  parsed.module = joined(parts);
  return parsed;
}

}  // namespace sluice::checkpoint
