// SPDX-License-Identifier: Apache-2.0
// A GGUF model: one file, or the parts of a split one (name-00001-of-00003.gguf), of which any may be named.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/gguf_header.h"
#include "checkpoint/gguf_metadata.h"
#include "checkpoint/mapped_file.h"

namespace sluice::checkpoint {

class GgufFiles {
 public:
  /// True when `path` is a file that ends in .gguf or starts like one.
  static bool is_one(const std::string& path);
  /// Opens every part and checks every header. Throws corrupt_file, unsupported or io.
  static GgufFiles open(const std::string& path);

  /// The keys of the first part, which has the model's.
  GgufMetadata metadata() const { return {files_.front()->header, files_.front()->mapped->path()}; }
  /// Of all parts, sorted by name.
  std::span<const GgufTensor> tensors() const { return tensors_; }
  std::span<const GgufTensor> below(std::string_view prefix) const;
  const GgufTensor* find(std::string_view name) const;

  int files() const { return static_cast<int>(files_.size()); }
  std::int64_t file_bytes() const;
  const std::vector<std::string>& notes() const { return notes_; }
  /// The file to name in a message about a tensor that is in none.
  const std::string& described() const { return files_.front()->mapped->path(); }
  /// Every file, for whoever keeps something made from them.
  std::vector<SourceFile> sources() const;
  /// Throws io when a file changed since it was opened.
  void check_unchanged() const;

 private:
  struct File {
    std::shared_ptr<const MappedFile> mapped;
    GgufHeader header;
  };
  void add(std::shared_ptr<const MappedFile> file);
  void check_parts(int parts) const;
  void merge();

  std::vector<std::unique_ptr<File>> files_;
  std::vector<GgufTensor> tensors_;
  std::vector<std::string> notes_;
};

}  // namespace sluice::checkpoint
