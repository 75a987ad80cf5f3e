// SPDX-License-Identifier: Apache-2.0
// What packed weights were made from, in words that are compared and never parsed: the backend and the
// version of its layout, the spec, and the weights.
//
// Weights in a file are known by that file (its path, size and both times of change), by where in it they
// are, and by samples of them; weights in other memory by all their bytes. docs/decisions/020-packed-cache.md
// says what that notices and what it costs.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "experts/backend.h"

namespace sluice {

struct Identity {
  std::string name;  // of a file: the same for all states of the same weights
  std::string text;  // all of it
};
Identity identity_of(const Backend& backend, const PackInput& input, std::span<const SourceFile> files);

/// Gives pages of mapped files back: called with an expert's position when it has been read to its end. Pages
/// that somebody needs again are read again, from the system's cache.
std::function<void(std::int32_t)> page_releaser(std::span<const ExpertWeights> experts,
                                                std::span<const SourceFile> files);

}  // namespace sluice
