// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/gguf_matrix.h"

#include <fmt/format.h>

#include <cmath>

#include "checkpoint/text.h"
#include "core/bits.h"
#include "core/error.h"
#include "format/f16.h"
#include "format/formats.h"
#include "format/fp4_blocks.h"

namespace sluice::checkpoint {
namespace {

std::int64_t row_bytes(const GgufTensor& tensor, std::int64_t cols) {
  return cols / tensor.type->columns * tensor.type->bytes;
}

std::string shape_text(const GgufShape& shape) {
  std::string text = fmt::format("{}", shape.cols);
  if (shape.rows > 1 || shape.experts > 1) text += fmt::format(", {}", shape.rows);
  if (shape.experts > 1) text += fmt::format(", {}", shape.experts);
  return "[" + text + "]";
}

[[noreturn]] void refuse_scale(const GgufTensor& tensor, std::int64_t block, std::string_view what) {
  fail(ErrorKind::corrupt_file,
       {.code = "gguf_bad_scale",
        .what = fmt::format("a scale of block {} is {}", block, what),
        .file = *tensor.file,
        .tensor = printable(tensor.name),
        .why = fmt::format("it would make the {} weights of a block of {} wrong", tensor.type->columns,
                           tensor.type->name),
        .todo = "Fetch the file again; if it is as published, the model was quantised wrongly"});
}

/// `check(block)` says what is wrong with a block, or nothing.
template <class Check>
void each_block(const GgufTensor& tensor, Check check) {
  const auto blocks = static_cast<std::int64_t>(tensor.bytes) / tensor.type->bytes;
  for (std::int64_t i = 0; i < blocks; ++i) {
    const std::string_view wrong = check(tensor.data + i * tensor.type->bytes);
    if (!wrong.empty()) refuse_scale(tensor, i, wrong);
  }
}

bool is_finite_f16(const std::byte* at) { return (load<std::uint16_t>(at) & 0x7C00u) != 0x7C00u; }

}  // namespace

void check_gguf_shape(const GgufTensor& tensor, const GgufShape& shape) {
  const auto& ne = tensor.ne;
  const bool right = ne[0] == shape.cols && ne[1] == shape.rows && ne[2] == shape.experts && ne[3] == 1;
  require(right, ErrorKind::corrupt_file, [&] {
    return ErrorInfo{.code = "gguf_wrong_shape",
                     .what = fmt::format("the tensor is {}, and by the file's keys it is {}",
                                         tensor.described(), shape_text(shape)),
                     .file = *tensor.file,
                     .tensor = printable(tensor.name),
                     .why =
                         "columns come first, then rows, then experts, as embedding_length, "
                         "feed-forward lengths and expert_count say",
                     .todo = "Fetch the file again; if it is as published, its keys and tensors disagree"};
  });
}

Format gguf_format(const GgufTensor& tensor) {
  const auto format = format_of(*tensor.type);
  require(format.has_value(), ErrorKind::unsupported, [&] {
    return ErrorInfo{.code = "gguf_type_not_read",
                     .what = fmt::format("weights in {} are not read", tensor.type->name),
                     .file = *tensor.file,
                     .tensor = printable(tensor.name),
                     .why = "read are F32, F16, BF16, Q8_0, Q4_0, Q4_K, Q5_K, Q6_K, MXFP4 and NVFP4",
                     .todo = "Use a file quantised to one of those"};
  });
  return *format;
}

WeightMatrix gguf_matrix(const GgufTensor& tensor, const GgufShape& shape, std::int64_t expert) {
  const std::int64_t stride = row_bytes(tensor, shape.cols);
  const std::byte* data = tensor.data + expert * shape.rows * stride;
  WeightMatrix matrix{.format = gguf_format(tensor),
                      .rows = shape.rows,
                      .cols = shape.cols,
                      .codes = data,
                      .row_stride = stride};
  if (tensor.type->columns == 1) matrix.col_stride = tensor.type->bytes;
  if (tensor.type->id == ggml::kMxfp4) {
    matrix.codes = data + 1;
    matrix.scales = {data, DType::f8_e8m0, stride, 1};
    matrix.blocks = format::kMxfp4Block;
  } else if (tensor.type->id == ggml::kNvfp4) {
    matrix.codes = data + 4;
    matrix.scales = {data, DType::f8_e4m3, stride, 1};
    matrix.blocks = format::kNvfp4Block;
  }
  return matrix;
}

void check_gguf_scales(const GgufTensor& tensor) {
  if (tensor.type->id == ggml::kMxfp4)
    return each_block(tensor, [](const std::byte* block) -> std::string_view {
      return block[0] == std::byte{255} ? "byte 255, the NaN of E8M0" : "";
    });
  if (tensor.type->id == ggml::kNvfp4)
    return each_block(tensor, [](const std::byte* block) -> std::string_view {
      for (int i = 0; i < 4; ++i) {
        const auto code = load<std::uint8_t>(block + i);
        if (code >= 0x7F) return code == 0x7F ? "byte 127, the NaN of E4M3" : "negative";
      }
      return "";
    });
  const Format format = gguf_format(tensor);
  if (!is_ggml_block(format)) return;
  const format::BlockNumbers numbers = format::block_numbers(format);
  each_block(tensor, [&](const std::byte* block) -> std::string_view {
    const bool good = is_finite_f16(block + numbers.scale) &&
                      (numbers.minimum < 0 || is_finite_f16(block + numbers.minimum));
    return good ? "" : "NaN or infinite";
  });
}

VectorView gguf_vector(const GgufTensor& tensor, const GgufShape& shape, std::int64_t expert) {
  const std::uint32_t id = tensor.type->id;
  require(id == ggml::kF32 || id == ggml::kF16 || id == ggml::kBf16, ErrorKind::corrupt_file, [&] {
    return ErrorInfo{
        .code = "gguf_wrong_type",
        .what = fmt::format("the tensor is {}, F32, F16 or BF16 was expected", tensor.type->name),
        .file = *tensor.file,
        .tensor = printable(tensor.name),
        .why = "biases, scales and routers are plain numbers",
        .todo = "Fetch the file again; if it is as published, it was quantised wrongly"};
  });
  const DType dtype = id == ggml::kF32 ? DType::f32 : id == ggml::kF16 ? DType::f16 : DType::bf16;
  return {tensor.data + expert * shape.cols * tensor.type->bytes, dtype, shape.cols, tensor.type->bytes};
}

}  // namespace sluice::checkpoint
