// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/tensor_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "checkpoint/text.h"
#include "core/error.h"
#include "format/scales.h"

namespace sluice::checkpoint {
namespace {

std::string shape_text(const Shape& shape) { return TensorView{.shape = shape}.shape_text(); }

template <class Items, class Text>
std::string either(const Items& items, Text text) {
  std::string all;
  for (std::size_t i = 0; i < items.size(); ++i)
    all += (i == 0 ? "" : i + 1 == items.size() ? " or " : ", ") + std::string(text(items[i]));
  return all;
}

/// Up to two tensors whose names begin like `name`: usually the tensor under another suffix.
std::string neighbours(const ModelFiles& files, std::string_view name) {
  const std::string_view module = name.substr(0, name.rfind('.') + 1);
  const auto near = module.empty() ? std::span<const ModelTensor>{} : files.below(module);
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(near.size(), 4); ++i)
    text += (i == 0 ? "" : ", ") + printable(near[i].name.substr(module.size()));
  return text.empty() ? text : fmt::format("beside it are {}", text);
}

/// Position of the first of `count` bytes that is no scale, or -1. The good codes of E4M3 (1 to 126) and of
/// E8M0 (0 to 254) lie next to each other, so that a byte costs one comparison and a vector register takes
/// many: a layer of DeepSeek-V4-Pro has 800 MB of scales.
std::int64_t first_bad_byte(const std::byte* data, std::size_t count, DType read_as) {
  const auto good = [&](unsigned code) {
    const auto byte = static_cast<std::byte>(code);
    return !format::scale_fault(format::read_number(read_as, &byte));
  };
  unsigned first = 0, last = 255;
  while (first < 256 && !good(first)) ++first;
  while (last > first && !good(last)) --last;
  // 0xFF is NaN and 0x80 to 0xFE are negative in E4M3, so what lies between is good in both types.
  constexpr std::size_t kChunk = 4096;
  for (std::size_t begin = 0; begin < count; begin += kChunk) {
    const std::size_t end = std::min(begin + kChunk, count);
    unsigned bad = 0;
    for (std::size_t i = begin; i < end; ++i)
      bad |= static_cast<std::uint8_t>(static_cast<unsigned>(data[i]) - first) > last - first;
    for (std::size_t i = begin; bad != 0 && i < end; ++i)
      if (!good(static_cast<unsigned>(data[i]))) return static_cast<std::int64_t>(i);
  }
  return -1;
}

/// Position of the first element that is no scale, or -1.
std::int64_t first_bad_scale(const TensorView& view, DType read_as, Signs signs = Signs::positive) {
  const std::size_t width = static_cast<std::size_t>(bits(read_as)) / 8;
  const std::size_t count = view.bytes() / width;
  if (width == 1) return first_bad_byte(view.data, count, read_as);
  for (std::size_t i = 0; i < count; ++i) {
    const float value = format::read_number(read_as, view.data + i * width);
    if (format::scale_fault(value, signs)) return static_cast<std::int64_t>(i);
  }
  return -1;
}

[[noreturn]] void refuse_scale(const ModelTensor& tensor, DType read_as, std::int64_t at) {
  const std::byte* data = tensor.view->data + at * bits(read_as) / 8;
  const float value = format::read_number(read_as, data);
  const bool nan_code = read_as == DType::f8_e8m0 && std::isnan(value);
  const std::string shown = nan_code            ? "byte 255, the NaN of E8M0"
                            : std::isnan(value) ? "NaN"
                            : value == 0        ? "zero"
                                                : fmt::format("{}", value);
  const std::string_view code =
      format::fault_code(format::scale_fault(value).value_or(format::ScaleFault::zero), read_as);
  fail(ErrorKind::corrupt_file,
       {.code = std::string(code),
        .what = fmt::format("scale {} of {} is {}", at, tensor.view->elements(), shown),
        .file = *tensor.file,
        .tensor = printable(tensor.name),
        .why = "a scale is finite and not zero, and positive but for integers; this one would make whole "
               "groups of weights wrong",
        .todo = "Fetch the file again; if it is as published, the model was quantised wrongly"});
}

}  // namespace

std::string described(const ModelTensor& tensor) {
  return fmt::format("{} {}", name(tensor.view->dtype), tensor.view->shape_text());
}

const ModelTensor* TensorReader::find(const std::string& name) const {
  const ModelTensor* tensor = files_->find(name);
  if (tensor != nullptr || !slice_) return tensor;
  constexpr std::string_view kWeight = ".weight";
  const std::size_t at = name.rfind(kWeight);
  return at == name.npos ? nullptr : files_->find(name.substr(0, at) + name.substr(at + kWeight.size()));
}

/// The selected expert's part of a stack of the right shape.
const ModelTensor& TensorReader::part_of(const ModelTensor& stack) {
  const TensorView& whole = *stack.view;
  Part& part = parts_.emplace_back(Part{.view = whole, .tensor = stack});
  part.view.shape.erase(part.view.shape.begin());
  part.view.data = whole.data + static_cast<std::int64_t>(whole.bytes()) / slice_->count * slice_->at;
  part.tensor.view = &part.view;
  return part.tensor;
}

const ModelTensor& TensorReader::need(const std::string& name, std::span<const DType> dtypes,
                                      std::span<const Shape> wanted) {
  const ModelTensor* tensor = find(name);
  std::vector<Shape> shapes(wanted.begin(), wanted.end());
  if (slice_)
    for (Shape& shape : shapes) shape.insert(shape.begin(), slice_->count);
  require(tensor != nullptr, ErrorKind::corrupt_file, [&] {
    return ErrorInfo{.code = "missing_tensor",
                     .what = "a tensor that the model needs is missing",
                     .file = files_->described(),
                     .tensor = printable(name),
                     .why = neighbours(*files_, name),
                     .todo = "Fetch the model again; config.json and the weights must belong together"};
  });
  const bool right_dtype = std::find(dtypes.begin(), dtypes.end(), tensor->view->dtype) != dtypes.end();
  const bool right_shape = std::find(shapes.begin(), shapes.end(), tensor->view->shape) != shapes.end();
  require(right_dtype && right_shape, ErrorKind::corrupt_file, [&] {
    const std::string types = either(dtypes, [](DType dtype) { return sluice::name(dtype); });
    return ErrorInfo{.code = right_dtype ? "wrong_shape" : "wrong_dtype",
                     .what = fmt::format("the tensor is {}, expected was {} {}", described(*tensor), types,
                                         either(shapes, shape_text)),
                     .file = *tensor->file,
                     .tensor = printable(name),
                     .why = "the expected shape follows from the sizes in config.json and the scheme",
                     .todo = "config.json and the weights must belong together: fetch both again"};
  });
  used_.emplace(tensor->name);
  return slice_ ? part_of(*tensor) : *tensor;
}

const ModelTensor& TensorReader::need(const std::string& name, std::initializer_list<DType> dtypes,
                                      const Shape& shape) {
  return need(name, std::span(dtypes.begin(), dtypes.size()), std::span(&shape, 1));
}

float TensorReader::scalar(const std::string& name) {
  const Shape shapes[] = {{}, {1}};
  const DType dtypes[] = {DType::f32, DType::f16, DType::bf16};
  const ModelTensor& tensor = need(name, dtypes, shapes);
  const std::int64_t bad = first_bad_scale(*tensor.view, tensor.view->dtype);
  if (bad >= 0) refuse_scale(tensor, tensor.view->dtype, bad);
  return format::read_number(tensor.view->dtype, tensor.view->data);
}

void TensorReader::check_scales(const ModelTensor& tensor, DType read_as, Signs signs) {
  if (depth_ != Depth::values) return;
  const std::int64_t bad = first_bad_scale(*tensor.view, read_as, signs);
  if (bad >= 0) refuse_scale(tensor, read_as, bad);
}

void TensorReader::refuse(ErrorInfo info) {
  if (faults_ == nullptr) fail(ErrorKind::corrupt_file, std::move(info));
  faults_->push_back(std::move(info));
}

VectorView TensorReader::vector(const std::string& name, std::int64_t size) {
  const DType dtypes[] = {DType::f32, DType::bf16, DType::f16};
  const Shape shapes[] = {{size}, {1, size}};
  const ModelTensor& tensor = need(name, dtypes, shapes);
  return {tensor.view->data, tensor.view->dtype, size, bits(tensor.view->dtype) / 8};
}

std::byte* TensorReader::own(std::size_t bytes) {
  return owned_->emplace_back(std::make_unique<std::byte[]>(bytes)).get();
}

std::vector<const ModelTensor*> TensorReader::unused(std::string_view prefix) const {
  std::vector<const ModelTensor*> left;
  for (const ModelTensor& tensor : files_->below(prefix))
    if (!used_.contains(tensor.name)) left.push_back(&tensor);
  return left;
}

}  // namespace sluice::checkpoint
