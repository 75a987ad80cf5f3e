// SPDX-License-Identifier: Apache-2.0
// A file of packed weights: a header that says what they are and has a checksum of every block, and the bytes
// as they are in memory, from a multiple of a huge page on so that they can be mapped as they lie.
//
//   "sluicepk"  u32 version  u32 bytes of the identity  u64 runs  u64 bytes of a run  u64 offset of the body
//   identity, and zeros up to a multiple of 8
//   u64 checksums [runs][blocks of a run]   u64 checksum of all before it
//   nothing (a hole)                        body
//
// Numbers are the machine's own: the magic number of another byte order does not match.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "experts/backend.h"
#include "sluice/executor.h"

namespace sluice {

/// What one checksum covers: a task's worth of reading, and 8 bytes of header for each. Blocks do not reach
/// over the end of a run.
inline constexpr std::size_t kPackedBlock = std::size_t{1} << 20;

/// Runs of equal size, one an expert.
struct PackedRuns {
  std::size_t count = 0, bytes = 0;

  std::size_t blocks() const { return (bytes + kPackedBlock - 1) / kPackedBlock; }  // of a run
  std::span<const std::byte> block(const std::byte* body, std::size_t run, std::size_t block) const {
    const std::size_t first = block * kPackedBlock;
    return {body + run * bytes + first, std::min(kPackedBlock, bytes - first)};
  }
};

/// A mapped file. Its body is private: what is written to it does not reach the file.
struct PackedFile {
  PackedRuns runs;
  std::shared_ptr<std::byte> body;
  std::vector<std::uint64_t> sums;       // [runs][blocks of a run]
  std::uint64_t device = 0, number = 0;  // which file it is, whatever its name is later
};

/// Maps `path` when it is whole, but for its body, which nobody has looked at, and its identity is that one.
/// Without a file, `why` tells what is wrong with it in words that follow its name, or is empty: there is
/// none.
struct FoundFile {
  std::optional<PackedFile> file;
  std::string why = {};
};
FoundFile open_packed(const std::string& path, const std::string& identity, std::size_t runs);

/// Writes a file beside `path` and gives it that name: whoever opens it sees the whole of an old one or of a
/// new one. Returns why not, or nothing.
std::string write_packed(const std::string& path, const std::string& identity, std::size_t runs,
                         std::span<const std::byte> body, Executor& executor);

/// Takes a damaged file away, unless another has its name by now.
void remove_packed(const std::string& path, const PackedFile& file);

}  // namespace sluice
