// SPDX-License-Identifier: Apache-2.0
// A scheme is how one kind of checkpoint spells a quantised matrix: which tensors, under which suffixes, of
// which types. It turns the tensors of a module into the canonical matrix (sluice/spec.h): even column low,
// scales multiply.
//
// Adding one: a file in this folder with a `const Scheme`, and a line where its quantisation method chooses
// it (quantisation.cpp). What the tensors mean is not said here but in src/format.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/tensor_reader.h"
#include "format/formats.h"
#include "sluice/spec.h"

namespace sluice::checkpoint {

struct MatrixShape {
  std::int64_t rows = 0, cols = 0;  // outputs, inputs
};

/// The matrices of all experts in one tensor.
struct StackShape {
  std::int64_t experts = 0, rows = 0, cols = 0;
};

struct Scheme {
  std::string name;
  /// The matrix of `module`, for example "model.layers.0.mlp.experts.3.up_proj". Null: the scheme stores
  /// stacks only.
  std::function<WeightMatrix(TensorReader&, const std::string& module, MatrixShape)> matrix;
  /// The matrices of all experts of `module`, for example "model.layers.0.mlp.experts.down_proj". Null: not
  /// stacked.
  std::function<std::vector<WeightMatrix>(TensorReader&, const std::string& module, StackShape)> stack = {};
};

/// Every scheme without numbers of its own; integers.h makes those that have some.
namespace schemes {
extern const Scheme kPlain;
extern const Scheme kMxfp4Blocks;
extern const Scheme kDeepseekFp4;
extern const Scheme kFp8Block;
extern const Scheme kFp8Tensor;
extern const Scheme kFp8Tiles32;
extern const Scheme kMxfp8;
extern const Scheme kPackedNvfp4;
extern const Scheme kPackedMxfp4;
extern const Scheme kFloatTensor;
extern const Scheme kFloatChannel;
extern const Scheme kFloatBlock;
extern const Scheme kFloatMxfp8;
extern const Scheme kModeloptNvfp4;
extern const Scheme kModeloptFp8;
extern const Scheme kModeloptFp8Channel;
extern const Scheme kModeloptFp8Block;
}  // namespace schemes

/// What most schemes are made of: a tensor of codes, a tensor of scales, maybe a number for the whole matrix.
struct Spelling {
  enum class Second { none, multiplies, divides };
  Format format;
  std::string_view codes = ".weight";
  std::string_view scales = ".weight_scale";
  std::string_view second = {};
  Second second_use = Second::none;
};

/// Reads a matrix by its spelling. Codes of one byte hold two 4-bit columns or one FP8 value; which integer
/// type a file calls them does not matter. Scale types are those that the format's `accepts_scales` accepts.
WeightMatrix read_matrix(TensorReader& reader, const std::string& module, MatrixShape shape,
                         const Spelling& spelling);

/// The types in which a file may store the scales of a format.
std::vector<DType> scale_types(Format format);

/// The scales of `matrix` from tensor `name`: shape from the matrix's geometry, values checked.
ScalesView read_scales(TensorReader& reader, const std::string& name, const WeightMatrix& matrix);

/// Throws corrupt_file unless the format's groups divide `cols` (4-bit and MX formats).
void check_groups(const ModelFiles& files, const std::string& module, Format format, std::int64_t cols);

/// What scales stored as `stored` are: U8 stands for F8_E8M0.
DType scale_type(DType stored);

}  // namespace sluice::checkpoint
