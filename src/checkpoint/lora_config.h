// SPDX-License-Identifier: Apache-2.0
// adapter_config.json, as PEFT writes it: which rank and scale a module has, and what would make the adapter
// something else than W + scale B A.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/pattern.h"

namespace sluice::checkpoint {

class LoraConfig {
 public:
  /// Throws corrupt_file, or unsupported (lora_variant) for what changes more than a sum.
  LoraConfig(const Json& json, const std::string& file_name);

  /// r of a module ("model.layers.3.mlp.experts.7.gate_proj"), by rank_pattern or r.
  int rank(const std::string& module) const;
  /// alpha / r, or alpha / sqrt(r) with use_rslora.
  float scale(const std::string& module) const;
  /// Whether target_parameters names a parameter ("model.layers.3.mlp.experts.down_proj").
  bool targets(std::string_view parameter) const;
  /// Since PEFT 0.19 A of a stack [experts, out, in] reads `in`; before, it read `out`. Nothing where the
  /// version is not known.
  std::optional<bool> stacks_read_inputs() const { return stacks_read_inputs_; }

 private:
  struct Rule {
    std::string key;
    Pattern pattern;
    double value;
  };
  Pattern rule(const std::string& key) const;
  double value(const std::vector<Rule>& rules, const std::string& module, double otherwise) const;

  std::string file_name_;
  int rank_ = 0;
  double alpha_ = 0;
  bool rslora_ = false;
  std::vector<Rule> ranks_, alphas_;
  std::vector<std::string> parameters_;
  std::optional<bool> stacks_read_inputs_;
};

}  // namespace sluice::checkpoint
