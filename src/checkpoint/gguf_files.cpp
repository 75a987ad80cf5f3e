// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/gguf_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>

#include "checkpoint/model_directory.h"
#include "checkpoint/text.h"
#include "core/error.h"

namespace sluice::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSuffix = ".gguf";
constexpr int kMostParts = 99'999;

/// "name-00002-of-00003.gguf" in parts; numbers count from 1.
struct PartName {
  std::string prefix;
  int number = 0, parts = 0;

  std::string of(int part) const { return fmt::format("{}-{:05}-of-{:05}{}", prefix, part, parts, kSuffix); }
};

std::optional<int> five_digits(std::string_view text) {
  if (text.size() != 5 || text.find_first_not_of("0123456789") != text.npos) return std::nullopt;
  int value = 0;
  for (const char digit : text) value = 10 * value + (digit - '0');
  return value;
}

std::optional<PartName> part_name(std::string_view name) {
  constexpr std::string_view kOf = "-of-";
  constexpr std::size_t kTail = 1 + 5 + kOf.size() + 5;  // "-00002-of-00003"
  if (!name.ends_with(kSuffix)) return std::nullopt;
  name.remove_suffix(kSuffix.size());
  if (name.size() <= kTail) return std::nullopt;
  const std::string_view tail = name.substr(name.size() - kTail);
  const auto number = five_digits(tail.substr(1, 5)), parts = five_digits(tail.substr(6 + kOf.size()));
  if (tail[0] != '-' || tail.substr(6, kOf.size()) != kOf || !number || !parts) return std::nullopt;
  if (*number < 1 || *number > *parts) return std::nullopt;
  return PartName{std::string(name.substr(0, name.size() - kTail)), *number, *parts};
}

}  // namespace

bool GgufFiles::is_one(const std::string& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return false;
  if (path.ends_with(kSuffix)) return true;
  std::array<char, 4> start{};
  std::ifstream file(path, std::ios::binary);
  return file.read(start.data(), start.size()) && is_gguf(std::as_bytes(std::span(start)));
}

void GgufFiles::add(std::shared_ptr<const MappedFile> file) {
  files_.push_back(std::make_unique<File>());
  File& added = *files_.back();
  added.mapped = std::move(file);
  added.header = parse_gguf(added.mapped->bytes(), added.mapped->path());
  for (GgufTensor& tensor : added.header.tensors) tensor.file = &added.mapped->path();
  if (added.header.trailing > 0)
    notes_.push_back(fmt::format("{} bytes follow the last tensor of {} and are not read",
                                 added.header.trailing, added.mapped->path()));
}

GgufFiles GgufFiles::open(const std::string& path) {
  GgufFiles model;
  const fs::path whole(path);
  const auto name = part_name(whole.filename().string());
  if (!name) {
    model.add(MappedFile::open(path));
    model.check_parts(1);
  } else {
    const ModelDirectory directory =
        ModelDirectory::find(whole.has_parent_path() ? whole.parent_path().string() : ".", {});
    for (int part = 1; part <= name->parts; ++part) {
      require(directory.has_file(name->of(part)), ErrorKind::corrupt_file, [&] {
        return ErrorInfo{.code = "missing_shard",
                         .what = fmt::format("part {} of {} is missing", part, name->parts),
                         .file = (whole.parent_path() / name->of(part)).string(),
                         .why = "the name says how many parts there are",
                         .todo = "Fetch all parts into one directory"};
      });
      model.add(directory.open(name->of(part)));
    }
    model.check_parts(name->parts);
  }
  model.merge();
  return model;
}

/// What parts say about themselves agrees with their names.
void GgufFiles::check_parts(int parts) const {
  for (std::size_t i = 0; i < files_.size(); ++i) {
    const GgufMetadata keys{files_[i]->header, files_[i]->mapped->path()};
    const int count = keys.integer_or("split.count", {0, kMostParts}, 0);
    if (std::max(count, 1) != parts)
      keys.refuse("gguf_wrong_split", "split.count",
                  fmt::format("it is {}, the name says {} parts; parts are named NAME-00001-of-0000N.gguf",
                              count, parts));
    if (parts == 1) continue;
    const int number = keys.integer("split.no", {0, kMostParts});
    if (number != static_cast<int>(i))
      keys.refuse("gguf_wrong_split", "split.no",
                  fmt::format("it is {}, counted from 0, and the name says {}, "
                              "counted from 1",
                              number, i + 1));
  }
}

void GgufFiles::merge() {
  for (const auto& file : files_)
    tensors_.insert(tensors_.end(), file->header.tensors.begin(), file->header.tensors.end());
  std::stable_sort(tensors_.begin(), tensors_.end(),
                   [](const auto& a, const auto& b) { return a.name < b.name; });
  const auto twice = std::adjacent_find(tensors_.begin(), tensors_.end(),
                                        [](const auto& a, const auto& b) { return a.name == b.name; });
  require(twice == tensors_.end(), ErrorKind::corrupt_file, [&] {
    return ErrorInfo{.code = "gguf_duplicate_tensor",
                     .what = "two parts have a tensor of the same name",
                     .file = *std::next(twice)->file,
                     .tensor = printable(twice->name),
                     .why = fmt::format("the other is in {}", *twice->file),
                     .todo = "The parts are of different models: fetch them again"};
  });
  const GgufMetadata keys = metadata();
  constexpr std::string_view kTotal = "split.tensors.count";
  if (files_.size() > 1 && keys.has(kTotal)) {
    const int total = keys.integer(kTotal, {0, 1 << 30});
    if (total != static_cast<int>(tensors_.size()))
      keys.refuse("gguf_wrong_split", kTotal,
                  fmt::format("it is {}, the parts have {} tensors", total, tensors_.size()));
  }
}

std::span<const GgufTensor> GgufFiles::below(std::string_view prefix) const {
  const auto first =
      std::lower_bound(tensors_.begin(), tensors_.end(), prefix,
                       [](const GgufTensor& tensor, std::string_view name) { return tensor.name < name; });
  const auto last = std::find_if_not(
      first, tensors_.end(), [&](const GgufTensor& tensor) { return tensor.name.starts_with(prefix); });
  return {first, last};
}

const GgufTensor* GgufFiles::find(std::string_view name) const {
  const auto found = below(name);
  return !found.empty() && found.front().name == name ? &found.front() : nullptr;
}

std::int64_t GgufFiles::file_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& file : files_) bytes += static_cast<std::int64_t>(file->mapped->bytes().size());
  return bytes;
}

std::vector<SourceFile> GgufFiles::sources() const {
  std::vector<SourceFile> all;
  for (const auto& file : files_) all.push_back(file->mapped->source());
  return all;
}

void GgufFiles::check_unchanged() const {
  for (const auto& file : files_) file->mapped->check_unchanged();
}

}  // namespace sluice::checkpoint
