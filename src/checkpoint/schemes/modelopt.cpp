// SPDX-License-Identifier: Apache-2.0
// NVIDIA ModelOpt: `module.weight`, `module.weight_scale`, and for NVFP4 `module.weight_scale_2`, a float32
// for the whole matrix that multiplies. `input_scale` belongs to activations and is not used.
#include "checkpoint/schemes/scheme.h"

namespace sluice::checkpoint {
namespace {

template <class F>
WeightMatrix floats(TensorReader& reader, const std::string& module, MatrixShape shape) {
  return read_matrix(reader, module, shape, {.format = Formats::of<F>()});
}

WeightMatrix nvfp4(TensorReader& reader, const std::string& module, MatrixShape shape) {
  return read_matrix(reader, module, shape,
                     {.format = Formats::of<format::Nvfp4>(),
                      .second = ".weight_scale_2",
                      .second_use = Spelling::Second::multiplies});
}

}  // namespace

const Scheme schemes::kModeloptNvfp4{.name = "NVFP4", .matrix = nvfp4};
const Scheme schemes::kModeloptFp8{.name = "FP8", .matrix = floats<format::Fp8Tensor>};
const Scheme schemes::kModeloptFp8Channel{.name = "FP8_PER_CHANNEL_PER_TOKEN",
                                          .matrix = floats<format::Fp8Channel>};
const Scheme schemes::kModeloptFp8Block{.name = "FP8_PB_WO", .matrix = floats<format::Fp8Block128>};

}  // namespace sluice::checkpoint
