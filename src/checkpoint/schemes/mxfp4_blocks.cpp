// SPDX-License-Identifier: Apache-2.0
// gpt-oss: quant_method "mxfp4". All experts in one tensor, `module_blocks` [experts, outputs, inputs / 32,
// 16] with the even column low, and `module_scales` [experts, outputs, inputs / 32] in E8M0. The blocks of a
// row follow each other, so a row is what MXFP4 calls a row.
#include "checkpoint/schemes/scheme.h"

namespace sluice::checkpoint {
namespace {

constexpr std::int64_t kGroup = 32;

std::vector<WeightMatrix> stack(TensorReader& reader, const std::string& module, StackShape shape) {
  constexpr Format kFormat = Formats::of<format::Mxfp4>();
  check_groups(reader.files(), module, kFormat, shape.cols);
  const std::int64_t groups = shape.cols / kGroup;
  const TensorView& blocks =
      *reader
           .need(module + "_blocks", {DType::u8, DType::i8}, {shape.experts, shape.rows, groups, kGroup / 2})
           .view;
  const ModelTensor& scales =
      reader.need(module + "_scales", {DType::u8, DType::f8_e8m0}, {shape.experts, shape.rows, groups});
  reader.check_scales(scales, DType::f8_e8m0);
  std::vector<WeightMatrix> matrices;
  for (std::int64_t e = 0; e < shape.experts; ++e)
    matrices.push_back({.format = kFormat,
                        .rows = shape.rows,
                        .cols = shape.cols,
                        .codes = blocks.data + e * shape.rows * shape.cols / 2,
                        .row_stride = shape.cols / 2,
                        .scales = {scales.view->data + e * shape.rows * groups, DType::f8_e8m0, groups, 1}});
  return matrices;
}

}  // namespace

const Scheme schemes::kMxfp4Blocks{.name = "mxfp4", .matrix = nullptr, .stack = stack};

}  // namespace sluice::checkpoint
