// SPDX-License-Identifier: Apache-2.0
// quant_method "fp8" and "mxfp8": `module.weight` in E4M3 and a scale that multiplies, whatever its name
// says.
//   blocks of 128 x 128   `.weight_scale_inv` (DeepSeek-V3, Qwen3) or `.scale` (DeepSeek-V4), F32, BF16 or
//   E8M0 the whole matrix      `.weight_scale` 32 columns of a row   `.weight_scale_inv` in E8M0 (MiniMax-M3)
#include "checkpoint/schemes/scheme.h"

namespace sluice::checkpoint {
namespace {

WeightMatrix block(TensorReader& reader, const std::string& module, MatrixShape shape) {
  const bool deepseek = reader.has(module + ".scale");
  return read_matrix(
      reader, module, shape,
      {.format = Formats::of<format::Fp8Block128>(), .scales = deepseek ? ".scale" : ".weight_scale_inv"});
}

WeightMatrix tensor(TensorReader& reader, const std::string& module, MatrixShape shape) {
  return read_matrix(reader, module, shape, {.format = Formats::of<format::Fp8Tensor>()});
}

WeightMatrix mxfp8(TensorReader& reader, const std::string& module, MatrixShape shape) {
  return read_matrix(reader, module, shape,
                     {.format = Formats::of<format::Mxfp8>(), .scales = ".weight_scale_inv"});
}

}  // namespace

const Scheme schemes::kFp8Block{.name = "fp8 in blocks of 128 x 128", .matrix = block};
const Scheme schemes::kFp8Tensor{.name = "fp8 with one scale a matrix", .matrix = tensor};
const Scheme schemes::kMxfp8{.name = "mxfp8", .matrix = mxfp8};

}  // namespace sluice::checkpoint
