// SPDX-License-Identifier: Apache-2.0
// A regular file, mapped read-only. The mapping lives as long as the object; the descriptor stays open so
// that a file that changed under us is noticed before its numbers are believed.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "sluice/spec.h"

namespace sluice::checkpoint {

class MappedFile {
 public:
  /// A file that the user names; links are followed. Throws io when there is no such file, it may not be
  /// read, or it is not a regular file.
  static std::shared_ptr<const MappedFile> open(const std::string& path);
  /// A file of a model directory whose links were resolved before (model_directory.h): `real` may not be a
  /// link any more. Messages say `shown`.
  static std::shared_ptr<const MappedFile> open_resolved(const std::string& real, const std::string& shown);

  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  /// As messages show it.
  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  /// What tells it from what may be in its place later.
  SourceFile source() const;

  /// Throws io when the file no longer has the size or the time of change that it was opened with. A file
  /// that shrank is a SIGBUS on the next read, so this is called before every pass over values.
  void check_unchanged() const;

 private:
  MappedFile(std::string path, int descriptor);
  static std::shared_ptr<const MappedFile> open_with(int flags, const std::string& real,
                                                     const std::string& shown);
  void map();

  std::string path_;
  int descriptor_ = -1;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  long long changed_ns_ = 0, status_changed_ns_ = 0;
};

/// The whole of a small text file (config.json). Throws corrupt_file when it has more than `cap` bytes.
std::string text_of(const MappedFile& file, std::size_t cap);

}  // namespace sluice::checkpoint
