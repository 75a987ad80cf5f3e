// SPDX-License-Identifier: Apache-2.0
// A fixture that can be damaged: read into memory, edited, written to a directory of its own.
#pragma once

#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "testing/safetensors_writer.h"

namespace sluice::testing {

/// A directory that is gone with the object.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory();
  const std::filesystem::path& path() const { return path_; }
  std::string file(std::string_view name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

void write_file(const std::filesystem::path& path, std::string_view bytes);
std::string read_file(const std::filesystem::path& path);

struct EditableModel {
  std::string config;  // config.json
  std::string index;   // model.safetensors.index.json, or empty
  std::map<std::string, std::vector<NamedTensor>> files;
  /// Edits of the directory after everything was written.
  std::function<void(const std::filesystem::path&)> finally = {};

  /// `fixture` is a directory below tests/data/fixtures.
  static EditableModel of(std::string_view fixture);
  /// A family of `sluice sample`.
  static EditableModel of_sample(std::string_view family);
  static EditableModel read(const std::filesystem::path& directory);
  void write(const std::filesystem::path& directory) const;

  /// Throws std::logic_error unless `from` is there: a corruption that changes nothing is no test.
  static void replace(std::string& text, std::string_view from, std::string_view to);
  void in_config(std::string_view from, std::string_view to) { replace(config, from, to); }
  void in_index(std::string_view from, std::string_view to) { replace(index, from, to); }

  NamedTensor& tensor(std::string_view name);
  void remove(std::string_view name);
  /// Removes every tensor whose name starts with `prefix`.
  void remove_below(std::string_view prefix);
  /// Adds a tensor to the first file (and to no index).
  void add(NamedTensor tensor);
  /// Overwrites element `at` of a tensor with the bytes of `value`.
  template <class T>
  void set(std::string_view name, std::size_t at, T value) {
    std::memcpy(tensor(name).bytes.data() + at * sizeof(T), &value, sizeof(T));
  }
};

}  // namespace sluice::testing
