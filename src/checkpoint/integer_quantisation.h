// SPDX-License-Identifier: Apache-2.0
// The quantisation methods that store integers, and what reading them shares with the others.
#pragma once

#include <initializer_list>
#include <string_view>

#include "checkpoint/quantisation.h"

namespace sluice::checkpoint {

/// quant_method "gptq", "awq" and "auto-round".
Quantisation read_gptq(const Config& config);
Quantisation read_awq(const Config& config);
Quantisation read_auto_round(const Config& config);

/// The scheme of a config group of compressed-tensors whose format is "pack-quantized".
Scheme read_pack_quantized(const Config& group);

/// Refuses the value of `key` as unknown_quantisation, with those that would do.
[[noreturn]] void unknown_quantisation(const Config& config, std::string_view key,
                                       std::initializer_list<std::string_view> known);

/// Modules that stay plain; the methods agree neither on the key nor on what matches.
ModuleRules modules_not_converted(const Config& config, Matching matching = Matching::subtrees);

}  // namespace sluice::checkpoint
