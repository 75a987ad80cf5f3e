// SPDX-License-Identifier: Apache-2.0
// Not quantised: `module.weight` in F32, F16 or BF16.
#include "checkpoint/schemes/scheme.h"

namespace sluice::checkpoint {
namespace {

constexpr DType kTypes[] = {DType::bf16, DType::f16, DType::f32};

Format format_of(DType dtype) {
  if (dtype == DType::f32) return Formats::of<format::F32>();
  return dtype == DType::f16 ? Formats::of<format::F16>() : Formats::of<format::Bf16>();
}

WeightMatrix matrix(TensorReader& reader, const std::string& module, MatrixShape shape) {
  const Shape stored[] = {{shape.rows, shape.cols}};
  const TensorView& view = *reader.need(module + ".weight", kTypes, stored).view;
  const std::ptrdiff_t width = bits(view.dtype) / 8;
  return {.format = format_of(view.dtype),
          .rows = shape.rows,
          .cols = shape.cols,
          .codes = view.data,
          .row_stride = shape.cols * width,
          .col_stride = width};
}

/// A parameter without ".weight", transposed: [experts, inputs, outputs], as the BF16 gpt-oss releases store
/// it.
std::vector<WeightMatrix> stack(TensorReader& reader, const std::string& module, StackShape shape) {
  const Shape stored[] = {{shape.experts, shape.cols, shape.rows}};
  const TensorView& view = *reader.need(module, kTypes, stored).view;
  const std::ptrdiff_t width = bits(view.dtype) / 8;
  std::vector<WeightMatrix> matrices;
  for (std::int64_t e = 0; e < shape.experts; ++e)
    matrices.push_back({.format = format_of(view.dtype),
                        .rows = shape.rows,
                        .cols = shape.cols,
                        .codes = view.data + e * shape.rows * shape.cols * width,
                        .row_stride = width,
                        .col_stride = shape.rows * width});
  return matrices;
}

}  // namespace

const Scheme schemes::kPlain{.name = "none", .matrix = matrix, .stack = stack};

}  // namespace sluice::checkpoint
