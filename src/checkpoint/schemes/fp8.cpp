// SPDX-License-Identifier: Apache-2.0
// quant_method "fp8" and "mxfp8": `module.weight` in E4M3 and a scale that multiplies, whatever its name
// says.
//   blocks of 128 x 128   `.weight_scale_inv` (DeepSeek-V3, Qwen3) or `.scale` (DeepSeek-V4), F32, BF16 or
//   E8M0 the whole matrix      `.weight_scale` 32 columns of a row   `.weight_scale_inv` in E8M0 (MiniMax-M3)
#include <cstring>

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

/// Tiles of 32 x 32 with powers of two are MXFP8 whose scales repeat for 32 rows, and are read as that: the
/// scales are written out, a byte for 32 weights.
WeightMatrix tiles(TensorReader& reader, const std::string& module, MatrixShape shape) {
  constexpr std::int64_t kTile = 32;
  check_groups(reader.files(), module, Formats::of<format::Mxfp8>(), shape.cols);
  const Shape stored[] = {{shape.rows, shape.cols}};
  const DType code_types[] = {DType::f8_e4m3};
  const std::int64_t groups = shape.cols / kTile;
  WeightMatrix matrix{.format = Formats::of<format::Mxfp8>(),
                      .rows = shape.rows,
                      .cols = shape.cols,
                      .codes = reader.need(module + ".weight", code_types, stored).view->data,
                      .row_stride = shape.cols,
                      .col_stride = 1};
  const std::string name = module + (reader.has(module + ".scale") ? ".scale" : ".weight_scale_inv");
  const ModelTensor& scales =
      reader.need(name, {DType::f8_e8m0, DType::u8}, {(shape.rows + kTile - 1) / kTile, groups});
  reader.check_scales(scales, DType::f8_e8m0);
  matrix.scales = {scales.view->data, DType::f8_e8m0, groups, 1};
  if (reader.depth() == Depth::headers) return matrix;
  const auto row_bytes = static_cast<std::size_t>(groups);
  std::byte* const repeated = reader.own(row_bytes * static_cast<std::size_t>(shape.rows));
  for (std::int64_t row = 0; row < shape.rows; ++row)
    std::memcpy(repeated + row * groups, scales.view->data + row / kTile * groups, row_bytes);
  matrix.scales.data = repeated;
  return matrix;
}

}  // namespace

const Scheme schemes::kFp8Tiles32{.name = "fp8 in tiles of 32 x 32", .matrix = tiles};
const Scheme schemes::kFp8Block{.name = "fp8 in blocks of 128 x 128", .matrix = block};
const Scheme schemes::kFp8Tensor{.name = "fp8 with one scale a matrix", .matrix = tensor};
const Scheme schemes::kMxfp8{.name = "mxfp8", .matrix = mxfp8};

}  // namespace sluice::checkpoint
