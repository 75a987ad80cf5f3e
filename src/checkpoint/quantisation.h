// SPDX-License-Identifier: Apache-2.0
// Which scheme stores which module of a model: quantization_config, read. Whether the files agree is found
// out when the modules are read.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/module_rules.h"
#include "checkpoint/schemes/scheme.h"

namespace sluice::checkpoint {

struct Quantisation {
  struct Assignment {
    ModuleRules modules;
    const Scheme* scheme;
  };

  std::string words = "none";            // for people
  ModuleRules not_converted = {};        // stored plainly whatever follows
  std::vector<Assignment> schemes = {};  // the first whose modules match decides; none: plain

  std::vector<std::shared_ptr<const Scheme>> made = {};  // schemes that `schemes` names and this model owns

  /// Adds a scheme that is this model's own.
  void add(ModuleRules modules, Scheme scheme);
  const Scheme& of(std::string_view module) const;
};

/// Reads `quantization_config` of config.json. Throws corrupt_file (unknown_quantisation) for a method, or a
/// variant of it, that is not known.
Quantisation read_quantisation(const Config& config);

/// Reads the `quantization` object of ModelOpt's hf_quant_config.json.
Quantisation read_modelopt_quantisation(const Config& quantization);

}  // namespace sluice::checkpoint
