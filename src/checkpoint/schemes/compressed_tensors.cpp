// SPDX-License-Identifier: Apache-2.0
// compressed-tensors. Packed formats call their codes `module.weight_packed`, float formats `module.weight`;
// scales are `module.weight_scale`. NVFP4's number for the matrix, `module.weight_global_scale`, DIVIDES: it
// is the reciprocal of what ModelOpt stores.
#include "checkpoint/schemes/scheme.h"

namespace sluice::checkpoint {
namespace {

template <class F>
WeightMatrix floats(TensorReader& reader, const std::string& module, MatrixShape shape) {
  return read_matrix(reader, module, shape, {.format = Formats::of<F>()});
}

WeightMatrix packed_mxfp4(TensorReader& reader, const std::string& module, MatrixShape shape) {
  return read_matrix(reader, module, shape,
                     {.format = Formats::of<format::Mxfp4>(), .codes = ".weight_packed"});
}

WeightMatrix packed_nvfp4(TensorReader& reader, const std::string& module, MatrixShape shape) {
  return read_matrix(reader, module, shape,
                     {.format = Formats::of<format::Nvfp4>(),
                      .codes = ".weight_packed",
                      .second = ".weight_global_scale",
                      .second_use = Spelling::Second::divides});
}

}  // namespace

const Scheme schemes::kPackedNvfp4{.name = "nvfp4-pack-quantized", .matrix = packed_nvfp4};
const Scheme schemes::kPackedMxfp4{.name = "mxfp4-pack-quantized", .matrix = packed_mxfp4};
const Scheme schemes::kFloatTensor{.name = "float-quantized, a scale a matrix",
                                   .matrix = floats<format::Fp8Tensor>};
const Scheme schemes::kFloatChannel{.name = "float-quantized, a scale a channel",
                                    .matrix = floats<format::Fp8Channel>};
const Scheme schemes::kFloatBlock{.name = "float-quantized, blocks of 128 x 128",
                                  .matrix = floats<format::Fp8Block128>};
const Scheme schemes::kFloatMxfp8{.name = "mxfp8-quantized", .matrix = floats<format::Mxfp8>};

}  // namespace sluice::checkpoint
