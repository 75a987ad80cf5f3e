// SPDX-License-Identifier: Apache-2.0
// Writes safetensors files: for `sluice run`, for `sluice sample`, and for tests. Dense, no gaps, the header
// padded with spaces so that the data starts on a multiple of 8, as the public library writes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "sluice/tensor.h"

namespace sluice::testing {

/// A tensor with its own memory.
struct NamedTensor {
  std::string name;
  DType dtype = DType::u8;
  std::vector<std::int64_t> shape = {};
  std::vector<std::byte> bytes = {};
};

/// Where tensors lie in the file. `by_width` is the public library's order: wide elements first, then by
/// name, so that every tensor is aligned to its own elements.
enum class TensorOrder : std::uint8_t { by_width, by_name, as_given };

struct WriteOptions {
  TensorOrder order = TensorOrder::by_width;
  std::map<std::string, std::string> metadata = {};  // "__metadata__", left out when empty
};

/// The whole file in memory. Throws invalid_argument when a tensor's bytes and shape disagree or a name
/// repeats.
std::string safetensors_file(std::span<const NamedTensor> tensors, const WriteOptions& options = {});

/// Writes `path` through a temporary file beside it, so that a reader never sees half of it. Throws io.
void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                       const WriteOptions& options = {});

/// A tensor of `values` (float, std::int32_t, std::int64_t, std::uint16_t bits of bf16, ...), copied as they
/// are.
template <class T>
NamedTensor tensor_of(std::string name, DType dtype, std::vector<std::int64_t> shape,
                      std::span<const T> values) {
  const std::span<const std::byte> bytes = std::as_bytes(values);
  return {std::move(name), dtype, std::move(shape), {bytes.begin(), bytes.end()}};
}

}  // namespace sluice::testing
