// SPDX-License-Identifier: Apache-2.0
// How a request meets the capabilities. The oracle names no backend: it is handed a list, so a test can hand
// it invented ones.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "experts/backend.h"
#include "sluice/plan.h"

namespace sluice {

/// Everything that keeps `backend` from running `request`, routed experts first, then the shared one with
/// "shared " before the trait. Empty exactly when it fits.
std::vector<Miss> compare(const Backend& backend, const Request& request);

/// "multiples of 32, whole rows".
std::string words(const IntegerGroups& groups);

/// A verdict on every backend of the list, ordered as plan.h says. Throws invalid_argument for a spec or
/// token counts that make no sense and for a by_name that is not in the list.
Plan choose(const Request& request, std::span<const Backend* const> among);

/// The backend called `name`, or null.
const Backend* find_backend(std::string_view name, std::span<const Backend* const> among);

/// The kernel whose range holds `tokens`, or null.
const Kernel* kernel_for(const Backend& backend, int tokens);

}  // namespace sluice
