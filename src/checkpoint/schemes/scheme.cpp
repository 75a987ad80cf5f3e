// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/schemes/scheme.h"

#include <fmt/format.h>

#include <cmath>

#include "checkpoint/text.h"
#include "core/error.h"
#include "format/geometry.h"

namespace sluice::checkpoint {
namespace {

std::vector<DType> code_types(const format::Geometry& geometry) {
  if (geometry.code_bits == 4) return {DType::u8, DType::i8};
  return {DType::f8_e4m3};
}

/// The shapes under which files store scales that geometry calls [rows, cols]: a single number also as [] and
/// [1], a column also as a vector, and ModelOpt's blocks with ones between ([rows, 1, cols, 1]).
std::vector<Shape> scale_shapes(const format::ScaleShape& scales) {
  std::vector<Shape> shapes{{scales.rows, scales.cols}};
  if (scales.rows == 1 && scales.cols == 1)
    shapes.insert(shapes.end(), {{}, {1}});
  else if (scales.cols == 1)
    shapes.push_back({scales.rows});
  shapes.push_back({scales.rows, 1, scales.cols, 1});
  return shapes;
}

float second_scale(TensorReader& reader, const std::string& name, Spelling::Second use) {
  const float stored = reader.scalar(name);
  if (use == Spelling::Second::multiplies) return stored;
  const float scale = 1.0f / stored;
  require(std::isfinite(scale), ErrorKind::corrupt_file, [&] {
    return ErrorInfo{
        .code = "scale_infinite",
        .what = fmt::format("the scale divides and is {}, whose reciprocal is beyond float32", stored),
        .file = *reader.files().find(name)->file,
        .tensor = printable(name),
        .todo = "Fetch the file again; if it is as published, the model was quantised wrongly"};
  });
  return scale;
}

}  // namespace

std::vector<DType> scale_types(Format format) {
  std::vector<DType> types;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f8_e4m3, DType::f8_e8m0, DType::u8})
    if (accepts_scales(format, scale_type(dtype))) types.push_back(dtype);
  return types;
}

DType scale_type(DType stored) { return stored == DType::u8 ? DType::f8_e8m0 : stored; }

void check_groups(const ModelFiles& files, const std::string& module, Format format, std::int64_t cols) {
  const format::Geometry& shape = geometry(format);
  const std::int64_t group =
      shape.group_rows == 1 && shape.group_cols > 0 ? shape.group_cols : 8 / shape.code_bits;
  require(group == 0 || cols % group == 0, ErrorKind::corrupt_file, [&] {
    return ErrorInfo{.code = "group_does_not_divide",
                     .what = fmt::format("{} columns are no multiple of the {} that share a scale in {}",
                                         cols, group, format.str()),
                     .file = files.described(),
                     .tensor = printable(module),
                     .why = "the last group of every row would be cut off",
                     .todo = "config.json and the weights must belong together: fetch both again"};
  });
}

ScalesView read_scales(TensorReader& reader, const std::string& name, const WeightMatrix& matrix) {
  const auto expected = format::scale_shape(geometry(matrix), matrix.rows, matrix.cols);
  const ModelTensor& tensor = reader.need(name, scale_types(matrix.format), scale_shapes(expected));
  const DType dtype = scale_type(tensor.view->dtype);
  reader.check_scales(tensor, dtype, format::signs_of(matrix.format));
  const std::ptrdiff_t width = bits(dtype) / 8;
  return {tensor.view->data, dtype, expected.cols * width, width};
}

WeightMatrix read_matrix(TensorReader& reader, const std::string& module, MatrixShape shape,
                         const Spelling& spelling) {
  const format::Geometry& format = geometry(spelling.format);
  check_groups(reader.files(), module, spelling.format, shape.cols);
  WeightMatrix matrix{.format = spelling.format, .rows = shape.rows, .cols = shape.cols};
  const std::int64_t row_bytes = shape.cols * format.code_bits / 8;
  const Shape stored[] = {{shape.rows, row_bytes}};
  const auto types = code_types(format);
  matrix.codes = reader.need(module + std::string(spelling.codes), types, stored).view->data;
  matrix.row_stride = row_bytes;
  matrix.col_stride = format.code_bits / 8;
  matrix.scales = read_scales(reader, module + std::string(spelling.scales), matrix);
  if (spelling.second_use != Spelling::Second::none)
    matrix.second_scale = second_scale(reader, module + std::string(spelling.second), spelling.second_use);
  return matrix;
}

}  // namespace sluice::checkpoint
