// SPDX-License-Identifier: Apache-2.0
// Which backend runs a layer, and why the others do not. The choice is the first verdict of a list that
// covers every backend; terminal text, JSON and exception messages all read that list.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sluice/device.h"
#include "sluice/error.h"
#include "sluice/spec.h"

namespace sluice {

/// What calls will ask of a layer beyond its numbers. Rows that are already with their experts, as an
/// all-to-all delivers them (ExpertRows in layer.h): "contiguous", "batched". And "batch_invariant": a token
/// gets the same bits alone and in any batch, with any number of threads. And "update": weights are replaced
/// in place (Layer::update_expert and its like).
using CallMode = Name<struct CallModeTag>;

struct Request {
  LayerSpec layer;
  DeviceFacts device;
  std::vector<int> tokens = {1, 16, 256};  // counts the layer should be good at
  std::string by_name = {};                // only this backend; the way to ask for "reference"
  std::vector<CallMode> calls = {};        // modes beyond tokens with their routing
};

/// One thing a backend has not declared. `why` is the sentence "<wanted> is not in <offered>" or its like.
struct Miss {
  std::string trait;  // "device", "instructions", "weights", "activation", "features", "hidden", ...
  std::string wanted;
  std::string offered;
  std::string why;
};

/// What a kernel is expected to cost. `basis` is "estimated" or "measured".
struct KernelCost {
  std::string kernel;
  int tokens = 0;
  double us = 0;
  std::string basis;
};

struct Verdict {
  std::string backend;
  bool fits = false;
  std::vector<Miss> misses = {};         // empty exactly when it fits
  std::vector<KernelCost> kernels = {};  // one for each token count, where it fits
};

struct Plan {
  Request request;
  std::string chosen = {};  // empty when nothing fits
  /// The chosen one, then those that fit by cost; then the one asked for by name, then by number of misses.
  std::vector<Verdict> verdicts = {};
};

/// A verdict on every backend of this build. Never throws for a request that nothing fits; see Unsupported.
Plan choose(const Request& request);

/// The plan as a table for people, ending in a newline.
std::string explain(const Plan& plan);

/// One line: "32 experts, top 4, 2880x2880, mxfp4, silu, needs gate_up_bias, limit, ...; H200".
std::string summary(const Request& request);

/// Thrown where a backend is needed and none fits. The message is the explanation.
class Unsupported : public Error {
 public:
  explicit Unsupported(Plan plan);
  const Plan& plan() const { return plan_; }

 private:
  Plan plan_;
};

/// What a backend declares, as text, for tables and documentation.
struct BackendInfo {
  std::string name;
  std::string device;
  std::vector<std::string> instructions, formats, activations, features, calls;
  std::string accuracy;        // "float32", or what is rounded beside
  std::string integer_groups;  // "multiples of 32, whole rows"; empty where it has no integer format
  bool only_by_name = false;
  bool built = false;  // its kernels are in this build
};
std::vector<BackendInfo> backends_info();

}  // namespace sluice
