// SPDX-License-Identifier: Apache-2.0
// The header of a safetensors file: https://github.com/huggingface/safetensors, README, "Format".
//
//   8 bytes   N, the header's length, little endian
//   N bytes   JSON: {"name": {"dtype": ..., "shape": [...], "data_offsets": [begin, end]}, ...,
//                    "__metadata__": {text: text}}, filled up with spaces
//   the rest  the tensors, one after the other without gaps, to the last byte of the file
//
// Strict: what the public library refuses is refused, and so is what it would let pass in silence. Nothing is
// allocated by a number that the file claims; memory grows with the bytes that are there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "sluice/tensor.h"

namespace sluice::checkpoint {

namespace limits {
inline constexpr std::uint64_t kHeaderBytes = 100'000'000;  // the public library's
inline constexpr std::size_t kTensors = 1'000'000;          // of one file
inline constexpr std::size_t kNameBytes = 1024;
inline constexpr std::size_t kRank = 8;
inline constexpr std::uint64_t kNumber = std::uint64_t{1} << 48;  // a dimension, a count of elements or bytes
}  // namespace limits

struct Header {
  std::vector<std::string> names;   // by offset, then by name
  std::vector<TensorView> tensors;  // in the same order; they point into the file's bytes
  std::map<std::string, std::string> metadata;
};

/// Reads and checks the header of a whole file. Throws corrupt_file; `file_name` is for messages.
Header parse_header(std::span<const std::byte> file, const std::string& file_name);

}  // namespace sluice::checkpoint
