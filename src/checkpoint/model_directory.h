// SPDX-License-Identifier: Apache-2.0
// From what a user types to files that may be opened. Nothing here touches a network, and no file outside the
// model's directory is opened because a file inside says so: the one link that is normal, from a Hugging Face
// cache's snapshots/<revision>/x to its own blobs/, is the one that is followed.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/mapped_file.h"

namespace sluice::checkpoint {

class ModelDirectory {
 public:
  /// `model` is a directory, or "org/name[@revision]" below `cache_root` (with or without hub/); empty
  /// `cache_root` accepts directories only. Throws io saying what to do.
  static ModelDirectory find(const std::string& model, const std::string& cache_root);

  /// As the user or the cache spells it.
  const std::string& path() const { return shown_; }
  /// Whether there is an entry of that name, even a link that leads nowhere.
  bool has(std::string_view name) const;
  /// The entry is a file, or a link that leads to one.
  bool has_file(std::string_view name) const;
  /// Opens a file of this directory. `name` is one path component. Throws corrupt_file for a link that leads
  /// out.
  std::shared_ptr<const MappedFile> open(std::string_view name) const;
  /// Names of entries, sorted.
  std::vector<std::string> entries() const;

 private:
  explicit ModelDirectory(const std::filesystem::path& path);
  std::filesystem::path resolve(std::string_view name) const;

  std::string shown_;
  std::filesystem::path root_;   // without links
  std::filesystem::path blobs_;  // of the cache it lies in, or empty
};

}  // namespace sluice::checkpoint
