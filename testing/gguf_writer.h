// SPDX-License-Identifier: Apache-2.0
// Writes small GGUF files, for tests. Says what it is told, also what no reader should accept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::testing {

class GgufWriter {
 public:
  struct Tensor {
    std::string name;
    std::uint32_t type = 0;         // ggml's number
    std::vector<std::uint64_t> ne;  // the fastest first
    std::string bytes;
    std::uint64_t offset = kFollows;  // or where it is said to be
  };
  static constexpr std::uint64_t kFollows = ~std::uint64_t{0};

  std::string magic = "GGUF";
  std::uint32_t version = 3;
  std::uint64_t alignment = 32;                   // of the data; add_u32 says it in the file
  std::uint64_t more_keys = 0, more_tensors = 0;  // claimed and not there
  std::vector<Tensor> tensors;

  /// A key with the raw bytes of its type and value.
  void add(std::string_view key, std::string value);
  void add_u32(std::string_view key, std::uint32_t value);
  void add_f32(std::string_view key, float value);
  void add_flag(std::string_view key, bool value);
  void add_text(std::string_view key, std::string_view value);
  void add_floats(std::string_view key, const std::vector<float>& values);
  void remove(std::string_view key);
  Tensor& tensor(std::string_view name);

  /// The whole file in memory.
  std::string file() const;

  /// Little endian bytes of a number.
  template <class T>
  static std::string raw(T value) {
    return {reinterpret_cast<const char*>(&value), sizeof(T)};
  }
  /// Length and bytes.
  static std::string text(std::string_view value);

 private:
  struct Key {
    std::string name, value;
  };
  std::vector<Key> keys_;
};

}  // namespace sluice::testing
