// SPDX-License-Identifier: Apache-2.0
// The machinery of `sluice check`: runs backends on the layers of a model, and compares them with the
// definition in double precision and, where there are any, with expected outputs.
//
// A backend passes a layer when
//   - against the definition: closeness.h's gates, in float32 roundings;
//   - against expected outputs: ids equal as sets, weights within 1e-5, and per token a relative L2 distance
//     of at most 3e-6 (the reference) or 4e-3 (the others; the fixtures' own measure of one bf16 rounding a
//     stage). Where none are expected, ids are compared with the definition's.
// Without expected outputs the inputs are drawn, large enough that the clamp of a layer that has one fires.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sluice/checkpoint.h"
#include "sluice/executor.h"
#include "sluice/layer.h"

namespace sluice::testing {

struct CheckRequest {
  std::vector<int> layers;
  std::string backend = "all";                            // or one name, which must fit then
  std::string expected = {};                              // safetensors file; empty: drawn inputs
  std::uint64_t seed = 0;                                 // of the drawn inputs
  Progress progress = {};                                 // of packing
  std::string cache = {};                                 // LayerOptions::cache
  std::function<void(const CacheReport&)> on_cache = {};  // of each layer that was run
};

/// What the limit of a layer's routed experts does to these inputs. All 0 when there is none.
struct ClampStatistics {
  bool limited = false;
  double gate_over_limit = 0;  // shares of the selected experts' values
  double up_over_limit = 0;
  double effect = 0;  // relative L2 change of experts_out, all tokens together, without the limit
};

/// One backend on one layer.
struct CheckCase {
  std::string backend;
  int layer = 0;
  double rel_l2_max =
      0;  // the worst token: against expected outputs where there are any, otherwise the definition
  double rel_l2_limit = 0;
  double worst_element_units = 0;  // against the definition
  double rms_units = 0;
  bool ids_equal = true;
  double weights_max_error = 0;
  ClampStatistics clamp;
  std::vector<std::string> failures = {};  // a sentence each; empty when it passed
};

/// A backend that was asked for by "all" and cannot run here.
struct NotRun {
  std::string backend;
  int layer = 0;
  std::string why;
};

struct CheckReport {
  std::string compared_with;  // "expected" or "reference"
  std::vector<CheckCase> cases;
  std::vector<NotRun> not_run;

  /// Something was compared, and nothing failed.
  bool passed() const;
};

/// Throws Unsupported when one backend was named and does not fit, and corrupt_file when the expected outputs
/// do not match the model.
CheckReport check(const Checkpoint& model, const CheckRequest& request);

/// The layers that the file has inputs of. Throws corrupt_file for none, and for one that the model has not.
std::vector<int> layers_to_check(const Checkpoint& model, const std::string& expected_file);

}  // namespace sluice::testing
