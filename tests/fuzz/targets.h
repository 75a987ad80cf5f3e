// SPDX-License-Identifier: Apache-2.0
// What the fuzzers and the replay test run on bytes that nobody vouches for. A target returns whether the
// bytes were accepted. Refusing them with an Error is fine; a crash, another exception, or a promise that
// does not hold for what was accepted (std::logic_error) is a defect.
#pragma once

#include <cstddef>
#include <span>

namespace sluice::fuzz {

/// The bytes are a safetensors file.
bool safetensors(std::span<const std::byte> file);

/// The bytes are config.json; after a zero byte model.safetensors.index.json, after another
/// hf_quant_config.json. The directory around them holds a tiny model of each family as
/// <model_type>.safetensors. Without an index of its own, the input gets one of the family that its text
/// mentions.
bool configuration(std::span<const std::byte> text);

/// The bytes are a GGUF file.
bool gguf(std::span<const std::byte> file);

}  // namespace sluice::fuzz
