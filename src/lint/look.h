// SPDX-License-Identifier: Apache-2.0
// The parts of look_at (facts.h), one a file.
#pragma once

#include "lint/bytes.h"
#include "lint/facts.h"

namespace sluice::linting {

/// Adds a code that stands for `value` to what is known of all: facts.codes[code] of them are there.
void weigh(Facts& facts, std::size_t code, float value, float largest);

/// Codes of a matrix of integers, whose runs these are; its zero points, and its lists of columns.
void look_at_integers(const WeightMatrix& matrix, const Runs& runs, Hash& hash, Facts& facts);
void look_at_zero_points(const WeightMatrix& matrix, Facts& facts);
void look_at_groups(const WeightMatrix& matrix, Facts& facts);

Runs scale_runs(const WeightMatrix& matrix);
void look_at_scales(const WeightMatrix& matrix, Hash& hash, ScaleFacts& facts);

}  // namespace sluice::linting
