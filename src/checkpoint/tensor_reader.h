// SPDX-License-Identifier: Apache-2.0
// How schemes and families get at tensors: by name, with the types and the shape that they expect. Whatever
// was asked for counts as used, so that a tensor nobody asked for can be noticed.
#pragma once

#include <deque>
#include <initializer_list>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/model_files.h"
#include "format/scale_faults.h"
#include "sluice/error.h"
#include "sluice/spec.h"

namespace sluice::checkpoint {

/// How much of the files a pass reads. Opening a model checks every layer by `headers`, which costs no more
/// than the headers and the single numbers among the scales; the weights of a layer are taken by `values`.
/// `unchecked_scales` is the same for a caller that looks at every scale itself.
enum class Depth : std::uint8_t { headers, values, unchecked_scales };

using format::Signs;

using Shape = std::vector<std::int64_t>;

class TensorReader {
 public:
  /// With `faults`, values that are wrong are listed there and not thrown.
  TensorReader(const ModelFiles& files, Depth depth, std::vector<ErrorInfo>* faults = nullptr)
      : files_(&files), depth_(depth), faults_(faults) {}

  Depth depth() const { return depth_; }
  const ModelFiles& files() const { return *files_; }

  bool has(const std::string& name) const { return find(name) != nullptr; }

  /// One of `count` experts whose tensors lie in one stack, [count, ...] each.
  struct Slice {
    std::int64_t at = 0, count = 0;
  };
  /// While set, every name means that expert's part of a stack, so that a scheme reads a stack as it reads
  /// single experts. Stacks are parameters rather than modules in some files: `x.weight` is also found as
  /// `x`, and `x.weight_scale_inv` as `x_scale_inv`.
  void look_at(std::optional<Slice> slice) { slice_ = slice; }

  /// The tensor, of one of `dtypes` and one of `shapes`. Throws corrupt_file naming what was expected.
  const ModelTensor& need(const std::string& name, std::span<const DType> dtypes,
                          std::span<const Shape> shapes);
  const ModelTensor& need(const std::string& name, std::initializer_list<DType> dtypes, const Shape& shape);

  /// A tensor of one positive, finite float32 (f32, f16, bf16), [] or [1]. Read at any depth.
  float scalar(const std::string& name);

  /// At depth `values`: throws corrupt_file unless every element is finite, not zero, and of such a sign.
  void check_scales(const ModelTensor& tensor, DType read_as, Signs signs = Signs::positive);

  /// What to do about a wrong value: throws corrupt_file, or lists it.
  void refuse(ErrorInfo info);

  /// A dense vector of numbers (f32, f16, bf16), [size] or [1, size].
  VectorView vector(const std::string& name, std::int64_t size);

  /// A tensor that is known and that nothing here needs.
  void ignore(const std::string& name) { used_.insert(name); }

  /// Memory for what no file holds in the form that is needed; aligned for any number.
  std::byte* own(std::size_t bytes);
  /// Keeps all of it alive.
  std::shared_ptr<const void> owned() const { return owned_; }

  /// The tensors below `prefix` that nobody asked for.
  std::vector<const ModelTensor*> unused(std::string_view prefix) const;

 private:
  struct Part {
    TensorView view;
    ModelTensor tensor;
  };
  const ModelTensor* find(const std::string& name) const;
  const ModelTensor& part_of(const ModelTensor& stack);

  const ModelFiles* files_;
  Depth depth_;
  std::vector<ErrorInfo>* faults_;
  std::optional<Slice> slice_ = {};
  std::deque<Part> parts_ = {};  // a deque: what was handed out stays where it is
  std::set<std::string, std::less<>> used_ = {};
  using Memory = std::vector<std::unique_ptr<std::byte[]>>;
  std::shared_ptr<Memory> owned_ = std::make_shared<Memory>();
};

/// "F8_E4M3 [192, 256]"
std::string described(const ModelTensor& tensor);

}  // namespace sluice::checkpoint
