// SPDX-License-Identifier: Apache-2.0
// All tensors of a model, whichever files they lie in: model.safetensors, or the shards that
// model.safetensors.index.json names.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/header.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/model_directory.h"
#include "sluice/tensor.h"

namespace sluice::checkpoint {

struct ModelTensor {
  std::string_view name;
  const TensorView* view = nullptr;
  const std::string* file = nullptr;  // its path, for messages
};

/// For a directory that lacks a file by this name: throws unsupported where it has a GGUF file instead.
void refuse_gguf_alone(const ModelDirectory& directory, std::string_view lacking);

class ModelFiles {
 public:
  /// Opens every file and checks every header. Throws corrupt_file, io or unsupported (pickles, GGUF).
  static ModelFiles open(const ModelDirectory& directory);

  /// Sorted by name.
  std::span<const ModelTensor> tensors() const { return tensors_; }
  /// Those whose names start with `prefix`.
  std::span<const ModelTensor> below(std::string_view prefix) const;
  /// Those in shards that the index does not list, below `prefix`. Nothing reads them.
  std::vector<const ModelTensor*> unlisted_below(std::string_view prefix) const;
  const ModelTensor* find(std::string_view name) const;
  bool has(std::string_view name) const { return find(name) != nullptr; }

  int files() const { return static_cast<int>(files_.size()); }
  std::int64_t file_bytes() const;
  const std::vector<std::string>& notes() const { return notes_; }
  /// The file to name in a message about a tensor that is in none: the model's one file, or its index.
  const std::string& described() const { return described_; }
  /// Every file, for whoever keeps something made from them.
  std::vector<SourceFile> sources() const;
  /// Throws io when a file changed since it was opened.
  void check_unchanged() const;

 private:
  struct File {
    std::shared_ptr<const MappedFile> mapped;
    Header header;
  };
  void add(std::shared_ptr<const MappedFile> file);
  void open_shards(const ModelDirectory& directory);
  void keep_listed(const std::vector<std::pair<std::string, std::string>>& listed);
  void note_unlisted(const std::vector<ModelTensor>& all);
  std::span<const ModelTensor> named(std::string_view name) const;
  void sort();

  std::vector<std::unique_ptr<File>> files_;  // unique_ptr: views into a File survive growth
  std::vector<ModelTensor> tensors_;
  std::vector<ModelTensor> unlisted_;
  std::vector<std::string> notes_;
  std::string described_;
};

}  // namespace sluice::checkpoint
