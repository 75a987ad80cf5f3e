// SPDX-License-Identifier: Apache-2.0
// What is wrong, odd or worth knowing about the values of a whole checkpoint. Every tensor of every MoE layer
// is read once, in the order of the file layer by layer, on all workers of the executor; memory does not grow
// with the model. Findings are data: whoever prints them decides how.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/checkpoint.h"
#include "sluice/executor.h"
#include "sluice/layer.h"

namespace sluice {

enum class Severity : std::uint8_t {
  note,     // a number worth knowing
  warning,  // suspicious: most models have none of it
  error,    // refused when the layer is loaded, or outputs are garbage
};
/// "note", "warning", "error".
std::string_view name(Severity severity);

/// Findings of one kind in one matrix of several experts are one finding that lists them.
struct Finding {
  Severity severity = Severity::note;
  std::string code = {};          // stable: "scale_nan", "duplicate_experts", ... (docs/checkpoints.md)
  int layer = 0;                  // its number in the model
  std::string matrix = {};        // "gate", "up", "down", "shared gate", ..., "router", "gate bias", or empty
  std::vector<int> experts = {};  // ascending; empty where it is of no single routed expert
  std::string what = {};          // with numbers
  std::string todo = {};
  std::string file = {}, tensor = {};  // of the first expert, where the values are a tensor's
  std::vector<std::pair<std::string, double>> numbers = {};  // the same as in `what`, by name
};

/// What the values of one kind of matrix of one layer span, over all its experts.
struct MatrixRange {
  int layer = 0;
  std::string matrix = {};   // "gate", "up", "down", "shared gate", ...
  std::string storage = {};  // "mxfp4", "int4 g128", ...
  std::int64_t matrices = 0, weights = 0;
  double zero_share = 0;  // of weights that are zero; of integers, in the middle of their range
  double top_share = 0;   // of codes of the largest magnitude there is; 0 of plain numbers
  double magnitude = 0;  // mean log2 of weights other than zero, to about 0.1; 0 of integers with zero points
  std::int64_t scales = 0;                       // 0: no scales, and the rest means nothing
  std::string scale_type = {};                   // "F8_E8M0", ...
  float smallest_scale = 0, largest_scale = 0;   // of magnitudes of good ones
  double bottom_share = 0, top_scale_share = 0;  // of one-byte scales at the ends of their type
  float smallest_second = 1, largest_second = 1;
};

struct LintReport {
  std::vector<Finding> findings;  // by layer; the worst of a layer first
  std::vector<MatrixRange> ranges;
  std::int64_t bytes = 0;  // read

  int count(Severity severity) const;
};

/// Looks at every value. Throws io when a file changed; values never throw, they are findings.
LintReport lint(const Checkpoint& model, Executor& executor, const Progress& progress = {});

}  // namespace sluice
