// SPDX-License-Identifier: Apache-2.0
// What the verbs find out, before it becomes text or JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sluice/checkpoint.h"
#include "sluice/device.h"
#include "sluice/layer.h"
#include "sluice/lint.h"
#include "sluice/plan.h"
#include "sluice/spec.h"

namespace sluice::tools {

struct InspectedLayer {
  int layer = 0;
  LayerSpec spec;
  std::int64_t bytes = 0;
  double bits_a_weight = 0;  // of the routed experts' matrices, scales included
};

struct InspectResult {
  ModelInfo model;
  std::vector<InspectedLayer> layers;
};

struct LintResult {
  ModelInfo model;
  LintReport report;
};

struct ExplainedLayer {
  int layer = 0;
  Plan plan;
};

struct ExplainResult {
  std::string model;
  DeviceFacts device;
  std::vector<int> tokens;
  std::vector<ExplainedLayer> layers;
};

struct WrittenTensor {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
};

struct RunResult {
  std::string model;
  int layer = 0;
  std::string backend;
  int tokens = 0;
  std::string routing;  // "router", "router_logits" or "topk_ids"
  std::string output;
  CacheReport cache = {};
  std::vector<WrittenTensor> tensors = {};
};

struct SampleResult {
  std::string family;
  std::string directory;
  std::uint64_t seed = 0;
  std::vector<int> layers;
  std::vector<std::string> files;
  std::int64_t bytes = 0;
};

}  // namespace sluice::tools
