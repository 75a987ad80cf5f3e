// SPDX-License-Identifier: Apache-2.0
// The header of a GGUF file: https://github.com/ggml-org/ggml, docs/gguf.md.
//
//   "GGUF", version (u32), number of tensors (u64), number of keys (u64), little endian
//   for each key:    its name, a type (u32), a value
//   for each tensor: its name, dimensions (u32 count, u64 each, the fastest first), type (u32), offset (u64)
//   zeros up to a multiple of general.alignment, then the tensors at their offsets, padded alike
//
// Strings are a u64 length and bytes; arrays a type, a u64 count, and values. Strict: nothing is believed
// before it was compared with the bytes that are there, nothing is allocated by a number that the file
// claims, and tensors neither overlap nor leave gaps that padding does not explain.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/gguf_types.h"

namespace sluice::checkpoint {

namespace limits {
inline constexpr std::uint64_t kGgufKeys = 100'000;             // published files have some 50
inline constexpr std::uint64_t kGgufTensors = 1'000'000;        // of one file
inline constexpr std::size_t kGgufMetadataBytes = 256'000'000;  // a large tokenizer has 10 MB
inline constexpr std::size_t kGgufKeyBytes = 65'535;            // the specification's
inline constexpr std::size_t kGgufNameBytes = 256;              // of a tensor; ggml itself has 63
inline constexpr std::uint64_t kGgufAlignment = 1u << 20;
inline constexpr int kGgufRank = 4;
}  // namespace limits

enum class GgufType : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, text, array, u64, i64, f64 };
/// Bytes of an element; 0 for texts and arrays, whose lengths vary.
std::size_t width_of(GgufType type);

/// The value of a key, where it lies in the file. Numbers and flags are one element; `count` is the length of
/// a text in bytes, or of an array in elements.
struct GgufValue {
  GgufType type = GgufType::u8;
  GgufType element = GgufType::u8;  // of an array
  std::uint64_t count = 1;
  const std::byte* data = nullptr;
};

struct GgufKey {
  std::string_view name;
  GgufValue value;
};

struct GgufTensor {
  std::string_view name;
  const GgmlType* type = nullptr;
  std::array<std::int64_t, limits::kGgufRank> ne{1, 1, 1, 1};  // the fastest first
  int rank = 0;
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
  const std::string* file = nullptr;  // its path, for messages; whoever keeps the tensor sets it

  /// "Q4_K [256, 64, 8]", dimensions as ggml counts them.
  std::string described() const;
};

struct GgufHeader {
  std::vector<GgufKey> keys;        // by name
  std::vector<GgufTensor> tensors;  // by name
  std::size_t trailing = 0;         // bytes after the last tensor that padding does not explain

  const GgufValue* find(std::string_view key) const;
};

/// Reads and checks the header of a whole file. Throws corrupt_file or unsupported; `file_name` is for
/// messages.
GgufHeader parse_gguf(std::span<const std::byte> file, const std::string& file_name);

/// True when the bytes start like a GGUF file.
bool is_gguf(std::span<const std::byte> file);

}  // namespace sluice::checkpoint
