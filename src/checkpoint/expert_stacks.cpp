// SPDX-License-Identifier: Apache-2.0
// Experts that lie in stacks, one tensor for all of them. A stack is read an expert at a time through the
// scheme that reads single experts (TensorReader::look_at), so every scheme of single experts reads stacks.
#include <fmt/format.h>

#include "checkpoint/layer_builder.h"
#include "checkpoint/text.h"
#include "core/error.h"
#include "format/geometry.h"

namespace sluice::checkpoint {
namespace {

/// Lets the reader go back to whole tensors, also when a tensor is refused.
class EachExpert {
 public:
  explicit EachExpert(TensorReader& reader) : reader_(reader) {}
  EachExpert(const EachExpert&) = delete;
  EachExpert& operator=(const EachExpert&) = delete;
  ~EachExpert() { reader_.look_at({}); }

  template <class Read>
  std::vector<ExpertWeights> of(int experts, Read read) {
    std::vector<ExpertWeights> all;
    for (int e = 0; e < experts; ++e) {
      reader_.look_at(TensorReader::Slice{e, experts});
      all.push_back(read());
    }
    return all;
  }

 private:
  TensorReader& reader_;
};

/// The module of a stack: "model.layers.3.moe.up_proj".
std::string stack_of(const LayerBlueprint& blueprint, std::string_view name) {
  const std::string stack = blueprint.block + std::string(blueprint.names.expert);
  return stack + (stack.empty() || stack.ends_with('.') ? "" : ".") + std::string(name);
}

/// Rows [first, first + count) of a matrix of which no scale spans rows of two parts.
WeightMatrix rows_of(WeightMatrix matrix, std::int64_t first, std::int64_t count) {
  const format::Geometry& shape = geometry(matrix.format);
  matrix.codes += first * matrix.row_stride;
  if (matrix.scales.data != nullptr && shape.group_rows > 0)
    matrix.scales.data += first / shape.group_rows * matrix.scales.row_stride;
  matrix.rows = count;
  return matrix;
}

/// Stored [inputs, outputs]; plain numbers only, whose order in memory strides can say.
WeightMatrix read_transposed(TensorReader& reader, const Quantisation& quantisation,
                             const std::string& module, MatrixShape shape) {
  const Scheme& scheme = quantisation.of(module);
  require(&scheme == &schemes::kPlain, ErrorKind::unsupported, [&] {
    return ErrorInfo{.code = "transposed_quantised",
                     .what = fmt::format("a transposed stack in {}", scheme.name),
                     .file = reader.files().described(),
                     .tensor = printable(module),
                     .why = "its scales would lie across the rows that they belong to",
                     .todo = "Use a checkpoint that stores each expert alone, or the unquantised one"};
  });
  WeightMatrix matrix = scheme.matrix(reader, module, {shape.cols, shape.rows});
  std::swap(matrix.rows, matrix.cols);
  std::swap(matrix.row_stride, matrix.col_stride);
  return matrix;
}

}  // namespace

GateAndUp halves_of(const WeightMatrix& both, const ModelFiles& files, const std::string& module) {
  const std::int64_t half = both.rows / 2;
  const format::Geometry& shape = geometry(both.format);
  // Formats whose rows do not lie a stride apart cannot be cut by moving a pointer.
  const bool rows_apart = both.row_stride != 0;
  require(rows_apart && (shape.group_rows == 0 || half % shape.group_rows == 0), ErrorKind::unsupported, [&] {
    return ErrorInfo{
        .code = "halves_share_scales",
        .what = fmt::format("gate and up are {} rows each of one matrix in {}, whose scales are for "
                            "{} rows",
                            half, both.format.str(), shape.group_rows),
        .file = files.described(),
        .tensor = printable(module),
        .why = "one scale would belong to rows of both",
        .todo = "Use a checkpoint that stores gate and up apart"};
  });
  return {rows_of(both, 0, half), rows_of(both, half, half)};
}

std::vector<ExpertWeights> read_separate_stacks(TensorReader& reader, const LayerBlueprint& blueprint,
                                                const Quantisation& quantisation) {
  const MatrixShape in{blueprint.intermediate, blueprint.hidden},
      out{blueprint.hidden, blueprint.intermediate};
  const auto matrix = [&](std::string_view name, MatrixShape shape) {
    return read_module(reader, quantisation, stack_of(blueprint, name), shape);
  };
  return EachExpert(reader).of(blueprint.router.experts, [&] {
    ExpertWeights expert{
        .gate = {}, .up = matrix(blueprint.names.up, in), .down = matrix(blueprint.names.down, out)};
    if (is_gated(blueprint.activation)) expert.gate = matrix(blueprint.names.gate, in);
    return expert;
  });
}

namespace {

/// A stack of gate and up and one of down, both read by `read`.
template <class Read>
std::vector<ExpertWeights> read_halves(TensorReader& reader, const LayerBlueprint& blueprint,
                                       const Quantisation& quantisation, Read read) {
  const std::string both = stack_of(blueprint, blueprint.names.up),
                    down = stack_of(blueprint, blueprint.names.down);
  const std::int64_t width = blueprint.intermediate, hidden = blueprint.hidden;
  return EachExpert(reader).of(blueprint.router.experts, [&] {
    const auto [gate, up] =
        halves_of(read(reader, quantisation, both, MatrixShape{2 * width, hidden}), reader.files(), both);
    return ExpertWeights{
        .gate = gate, .up = up, .down = read(reader, quantisation, down, MatrixShape{hidden, width})};
  });
}

}  // namespace

std::vector<ExpertWeights> read_fused_stacks(TensorReader& reader, const LayerBlueprint& blueprint,
                                             const Quantisation& quantisation) {
  return read_halves(reader, blueprint, quantisation, read_module);
}

std::vector<ExpertWeights> read_transposed_stacks(TensorReader& reader, const LayerBlueprint& blueprint,
                                                  const Quantisation& quantisation) {
  return read_halves(reader, blueprint, quantisation, read_transposed);
}

}  // namespace sluice::checkpoint
