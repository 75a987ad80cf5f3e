// SPDX-License-Identifier: Apache-2.0
// MODEL of the command line: a directory, or a name in the local Hugging Face cache. The only place of Sluice
// that reads environment variables: HF_HUB_CACHE, HF_HOME and HOME, as the Hugging Face tools do.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sluice/checkpoint.h"

namespace sluice::tools {

Checkpoint open_model(const std::string& model);

/// The one layer asked for, or every MoE layer.
std::vector<int> chosen_layers(const Checkpoint& model, std::optional<int> layer);

/// Throws invalid_argument naming the backends of this build unless `name` is one of them or empty.
void require_backend_name(const std::string& name);

}  // namespace sluice::tools
