// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/schemes/integers.h"

#include <fmt/format.h>

#include "checkpoint/text.h"
#include "core/bits.h"
#include "core/error.h"
#include "format/integers.h"

namespace sluice::checkpoint {
namespace {

using Along = PackedGrid::Along;
using format::words_of_line;

constexpr const char* kBelongTogether = "config.json and the weights must belong together: fetch both again";

Format format_of(int bits) { return *Format::parse(fmt::format("int{}", bits)); }

Grouping grouping_of(const IntegerStorage& storage) {
  return {.columns = storage.group,
          .zero_points = !storage.symmetric,
          // All columns of one group: no order of theirs makes a difference.
          .act_order = storage.act_order && storage.group != 0};
}

WeightMatrix matrix_of(const IntegerStorage& storage, MatrixShape shape) {
  WeightMatrix matrix{.format = format_of(storage.bits), .rows = shape.rows, .cols = shape.cols};
  matrix.integers.grouping = grouping_of(storage);
  return matrix;
}

std::string name_of(std::string_view layout, const IntegerStorage& storage) {
  return fmt::format("{} {}", layout, storage_text(format_of(storage.bits), grouping_of(storage)));
}

/// Refuses columns' groups unless they are those that there are, and, where nothing says that they are
/// listed, those that counting gives.
void check_column_groups(TensorReader& reader, const ModelTensor& tensor, const WeightMatrix& matrix) {
  const std::int64_t groups = format::groups_of_row(matrix);
  for (std::int64_t c = 0; c < matrix.cols; ++c) {
    const std::int64_t listed = load<std::int32_t>(tensor.view->data + 4 * c);
    if (listed < 0 || listed >= groups)
      return reader.refuse(
          {.code = "bad_column_group",
           .what = fmt::format("column {} is in group {}, there are {}", c, listed, groups),
           .file = *tensor.file,
           .tensor = printable(tensor.name),
           .todo = "Fetch the file again; if it is as published, the model was quantised wrongly"});
    if (!matrix.integers.grouping.act_order && listed != format::group_of_column(matrix, c))
      return reader.refuse({.code = "column_order_not_declared",
                            .what = fmt::format("column {} is in group {}, by its place it is in {}", c,
                                                listed, format::group_of_column(matrix, c)),
                            .file = *tensor.file,
                            .tensor = printable(tensor.name),
                            .why = "config.json says that the columns are in order (desc_act is false)",
                            .todo = "Set desc_act to true in config.json if this order is meant"});
  }
}

/// The list of the columns' groups, where it is needed or there all the same.
void read_column_groups(TensorReader& reader, const std::string& name, WeightMatrix& matrix) {
  const bool needed = matrix.integers.grouping.act_order;
  if (!needed && !reader.has(name)) return;
  const ModelTensor& tensor = reader.need(name, {DType::i32}, {matrix.cols});
  if (reader.depth() != Depth::headers) check_column_groups(reader, tensor, matrix);
  if (needed) matrix.integers.column_groups = tensor.view->data;
}

/// Refuses zero points of a symmetric matrix that are not the middle.
void check_symmetric(TensorReader& reader, const ModelTensor& tensor, const WeightMatrix& matrix,
                     int zero_offset) {
  const int bits = format::integer_bits(matrix), middle = 1 << (bits - 1);
  const std::int64_t groups = format::groups_of_row(matrix);
  for (std::int64_t r = 0; r < matrix.rows; ++r)
    for (std::int64_t group = 0; group < groups; ++group) {
      const int zero = static_cast<int>(format::zero_of(matrix, r, group));
      if (zero != middle)
        return reader.refuse(
            {.code = "zero_point_not_symmetric",
             .what = fmt::format("the zero point of row {}, group {} is {}, of symmetric {} bits it is {}", r,
                                 group, zero, bits, middle),
             .file = *tensor.file,
             .tensor = printable(tensor.name),
             .why = fmt::format("config.json says sym, and that {} is to be added to what is stored",
                                zero_offset),
             .todo = "Check checkpoint_format (gptq_v2 adds nothing, gptq adds one), or set sym to false if "
                     "these "
                     "zero points are meant"});
    }
}

/// Zero points in lines along the columns, as GPTQ and AWQ store them: [groups, words of the rows].
void read_qzeros(TensorReader& reader, const std::string& name, const IntegerStorage& storage,
                 WeightMatrix& matrix) {
  const std::int64_t groups = format::groups_of_row(matrix),
                     words = words_of_line(matrix.integers.codes.packing, storage.bits, matrix.rows);
  const ModelTensor& tensor = reader.need(name, {DType::i32}, {groups, words});
  IntegerParts& parts = matrix.integers;
  parts.zeros = tensor.view->data;
  parts.zeros_grid = {.packing = parts.codes.packing, .along = Along::column, .line_stride = 4 * words};
  parts.zero_offset = storage.zero_offset;
  if (!storage.symmetric) return;
  if (reader.depth() != Depth::headers) check_symmetric(reader, tensor, matrix, storage.zero_offset);
  parts.zeros = nullptr;
  parts.zeros_grid = {};
  parts.zero_offset = 0;
}

/// Scales as GPTQ and AWQ store them: [groups, outputs].
ScalesView read_transposed_scales(TensorReader& reader, const std::string& name, const WeightMatrix& matrix) {
  const Shape stored[] = {{format::groups_of_row(matrix), matrix.rows}};
  const ModelTensor& tensor = reader.need(name, scale_types(matrix.format), stored);
  const DType dtype = tensor.view->dtype;
  reader.check_scales(tensor, dtype, format::signs_of(matrix.format));
  const std::ptrdiff_t width = bits(dtype) / 8;
  return {tensor.view->data, dtype, width, matrix.rows * width};
}

void need_whole_words(const TensorReader& reader, const std::string& module, std::int64_t integers,
                      int bits) {
  require(integers * bits % 32 == 0, ErrorKind::corrupt_file, [&] {
    return ErrorInfo{.code = "packing_does_not_divide",
                     .what = fmt::format("{} integers of {} bits fill no whole words of 32", integers, bits),
                     .file = reader.files().described(),
                     .tensor = printable(module),
                     .why = "this layout packs whole words only",
                     .todo = kBelongTogether};
  });
}

bool is_plain(const TensorReader& reader, const std::string& module) {
  return !reader.has(module + ".qweight") && reader.has(module + ".weight");
}

WeightMatrix read_gptq_matrix(TensorReader& reader, const std::string& module, MatrixShape shape,
                              const IntegerStorage& storage) {
  need_whole_words(reader, module, shape.cols, storage.bits);
  need_whole_words(reader, module, shape.rows, storage.bits);
  WeightMatrix matrix = matrix_of(storage, shape);
  const std::int64_t words = shape.cols * storage.bits / 32;
  matrix.codes = reader.need(module + ".qweight", {DType::i32}, {words, shape.rows}).view->data;
  matrix.integers.codes = {.along = Along::row, .line_stride = 4, .word_stride = 4 * shape.rows};
  matrix.scales = read_transposed_scales(reader, module + ".scales", matrix);
  read_qzeros(reader, module + ".qzeros", storage, matrix);
  read_column_groups(reader, module + ".g_idx", matrix);
  return matrix;
}

WeightMatrix read_awq_matrix(TensorReader& reader, const std::string& module, MatrixShape shape,
                             const IntegerStorage& storage) {
  need_whole_words(reader, module, shape.rows, storage.bits);
  WeightMatrix matrix = matrix_of(storage, shape);
  const std::int64_t words = shape.rows / 8;
  matrix.codes = reader.need(module + ".qweight", {DType::i32}, {shape.cols, words}).view->data;
  matrix.integers.codes = {.packing = Packing::awq, .along = Along::column, .line_stride = 4 * words};
  matrix.scales = read_transposed_scales(reader, module + ".scales", matrix);
  read_qzeros(reader, module + ".qzeros", storage, matrix);
  return matrix;
}

/// Dense or padded, by the width of a row. Where both are as wide and differ all the same, nobody can tell.
Packing packing_of(const TensorReader& reader, const ModelTensor& tensor, int bits, std::int64_t cols) {
  const std::int64_t dense = words_of_line(Packing::dense, bits, cols),
                     padded = words_of_line(Packing::padded, bits, cols);
  if (dense != padded) return tensor.view->shape[1] == dense ? Packing::dense : Packing::padded;
  require(32 % bits == 0 || cols <= 32 / bits, ErrorKind::unsupported, [&] {
    return ErrorInfo{
        .code = "ambiguous_packing",
        .what = fmt::format("{} integers of {} bits take {} words in the dense and in the older, "
                            "padded packing",
                            cols, bits, dense),
        .file = reader.files().described(),
        .tensor = printable(tensor.name),
        .why = "the width of the tensor is all that tells them apart",
        .todo = "Use a checkpoint of another width or number of bits"};
  });
  return Packing::dense;
}

/// `weight_shape` repeats what the configuration says.
void check_weight_shape(TensorReader& reader, const std::string& name, MatrixShape shape) {
  if (!reader.has(name)) return;
  const ModelTensor& tensor = reader.need(name, {DType::i64, DType::i32}, {2});
  const auto number = [&](std::int64_t i) {
    return tensor.view->dtype == DType::i64 ? load<std::int64_t>(tensor.view->data + 8 * i)
                                            : std::int64_t{load<std::int32_t>(tensor.view->data + 4 * i)};
  };
  require(number(0) == shape.rows && number(1) == shape.cols, ErrorKind::corrupt_file, [&] {
    return ErrorInfo{.code = "wrong_packed_shape",
                     .what = fmt::format("the tensor says that the matrix is {}x{}, expected was {}x{}",
                                         number(0), number(1), shape.rows, shape.cols),
                     .file = *tensor.file,
                     .tensor = printable(tensor.name),
                     .todo = kBelongTogether};
  });
}

WeightMatrix read_packed_matrix(TensorReader& reader, const std::string& module, MatrixShape shape,
                                const IntegerStorage& storage) {
  const int bits = storage.bits;
  WeightMatrix matrix = matrix_of(storage, shape);
  check_weight_shape(reader, module + ".weight_shape", shape);
  const DType types[] = {DType::i32};
  std::vector<Shape> shapes{{shape.rows, words_of_line(Packing::dense, bits, shape.cols)}};
  const Shape padded{shape.rows, words_of_line(Packing::padded, bits, shape.cols)};
  if (padded != shapes.front()) shapes.push_back(padded);
  const ModelTensor& codes = reader.need(module + ".weight_packed", types, shapes);
  IntegerParts& parts = matrix.integers;
  const Packing packing = packing_of(reader, codes, bits, shape.cols);
  matrix.codes = codes.view->data;
  parts.codes = {.packing = packing, .along = Along::row, .line_stride = 4 * codes.view->shape[1]};
  matrix.scales = read_scales(reader, module + ".weight_scale", matrix);
  if (parts.grouping.zero_points) {
    const std::int64_t groups = format::groups_of_row(matrix),
                       words = words_of_line(packing, bits, shape.rows);
    parts.zeros = reader.need(module + ".weight_zero_point", {DType::i32}, {words, groups}).view->data;
    parts.zeros_grid = {
        .packing = packing, .along = Along::column, .line_stride = 4, .word_stride = 4 * groups};
  }
  read_column_groups(reader, module + ".weight_g_idx", matrix);
  return matrix;
}

}  // namespace

Scheme packed_integers(const IntegerStorage& storage) {
  return {.name = name_of("pack-quantized", storage),
          .matrix = [storage](TensorReader& reader, const std::string& module, MatrixShape shape) {
            return read_packed_matrix(reader, module, shape, storage);
          }};
}

Scheme gptq_integers(const IntegerStorage& storage) {
  return {.name = name_of("gptq", storage),
          .matrix = [storage](TensorReader& reader, const std::string& module, MatrixShape shape) {
            return is_plain(reader, module) ? schemes::kPlain.matrix(reader, module, shape)
                                            : read_gptq_matrix(reader, module, shape, storage);
          }};
}

Scheme awq_integers(const IntegerStorage& storage) {
  return {.name = name_of("awq", storage),
          .matrix = [storage](TensorReader& reader, const std::string& module, MatrixShape shape) {
            return is_plain(reader, module) ? schemes::kPlain.matrix(reader, module, shape)
                                            : read_awq_matrix(reader, module, shape, storage);
          }};
}

}  // namespace sluice::checkpoint
