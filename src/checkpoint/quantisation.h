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
#include "sluice/error.h"

namespace sluice::checkpoint {

struct Quantisation {
  struct Assignment {
    ModuleRules modules;
    const Scheme* scheme;
  };

  std::string words = "none";                                   // for people
  ModuleRules not_converted = {};                               // stored plainly whatever follows
  ModuleMap<const Scheme*> named = ModuleMap<const Scheme*>();  // modules by name, before the others
  std::vector<Assignment> schemes = {};  // the first whose modules match decides; none: plain

  std::vector<std::shared_ptr<const Scheme>> made = {};  // schemes that `schemes` names and this model owns

  /// Keeps a scheme that is this model's own.
  const Scheme* keep(Scheme scheme);
  void add(ModuleRules modules, Scheme scheme);
  const Scheme& of(std::string_view module) const;
};

/// A scheme that refuses in the words of `error` when a module needs it: what one group of a configuration
/// says of attention need not be known to read experts.
Scheme refusing_scheme(const Error& error);

/// Reads `quantization_config` of config.json. Throws corrupt_file (unknown_quantisation) for a method, or a
/// variant of it, that is not known.
Quantisation read_quantisation(const Config& config);

/// Reads the `quantization` object of ModelOpt's hf_quant_config.json.
Quantisation read_modelopt_quantisation(const Config& quantization);

}  // namespace sluice::checkpoint
