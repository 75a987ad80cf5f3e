// SPDX-License-Identifier: Apache-2.0
// The routed experts of DeepSeek-V4: MXFP4 with `module.weight` I8 [outputs, inputs / 2], the even column
// low, and `module.scale` E8M0 [outputs, inputs / 32]. The model's quantization_config says fp8 and does not
// mention them.
#include "checkpoint/schemes/scheme.h"

namespace sluice::checkpoint {
namespace {

WeightMatrix matrix(TensorReader& reader, const std::string& module, MatrixShape shape) {
  return read_matrix(reader, module, shape, {.format = Formats::of<format::Mxfp4>(), .scales = ".scale"});
}

}  // namespace

const Scheme schemes::kDeepseekFp4{.name = "deepseek fp4", .matrix = matrix};

}  // namespace sluice::checkpoint
