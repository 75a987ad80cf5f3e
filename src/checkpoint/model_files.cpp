// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/model_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "checkpoint/config.h"
#include "checkpoint/json.h"
#include "checkpoint/text.h"
#include "core/error.h"

namespace sluice::checkpoint {
namespace {

constexpr std::string_view kSingle = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";
constexpr std::size_t kIndexBytes = 256'000'000;
constexpr std::size_t kModelTensors = 1'000'000;

constexpr const char* kFetchIndex = "Fetch the index again; it must belong to these shards";

bool before(const ModelTensor& a, const ModelTensor& b) { return a.name < b.name; }

[[noreturn]] void no_weights(const ModelDirectory& directory) {
  for (const std::string& entry : directory.entries()) {
    for (const std::string_view pickle : {".bin", ".pt", ".pth", ".ckpt"})
      if (entry.ends_with(pickle))
        fail(ErrorKind::unsupported,
             {.code = "pickle_not_read",
              .what = fmt::format("the weights are a pickle, \"{}\"", printable(entry)),
              .file = directory.path(),
              .why = "reading a pickle runs whatever code is in it, so it is never done",
              .todo = "Fetch the model as .safetensors, or convert it with transformers: save_pretrained "
                      "writes them"});
  }
  refuse_gguf_alone(directory, kSingle);
  fail(ErrorKind::io, {.code = "no_weights",
                       .what = fmt::format("there is neither {} nor {}", kSingle, kIndex),
                       .file = directory.path(),
                       .todo = "Give a directory with config.json and .safetensors files"});
}

/// A shard's name is one path component, so that an index cannot name a file elsewhere.
void check_shard_name(const std::string& name, const std::string& tensor, const std::string& index_path) {
  constexpr std::string_view kAllowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  const auto refuse = [&](const char* code, std::string_view why) {
    fail(ErrorKind::corrupt_file,
         {.code = code,
          .what = fmt::format("the index places a tensor in \"{}\"", printable(name)),
          .file = index_path,
          .tensor = printable(tensor),
          .why = std::string(why),
          .todo = "Do not use this model unless you trust where it is from"});
  };
  if (name.starts_with('/'))
    refuse("index_absolute_path", "an absolute path leads out of the model's directory");
  if (name.find('/') != name.npos)
    refuse("index_path", "a shard lies in the model's directory, not along a path");
  if (name.empty() || name.front() == '.' || name.find_first_not_of(kAllowed) != name.npos)
    refuse("index_bad_name",
           "a shard's name holds letters, digits, '.', '_' and '-' and does not start with '.'");
  if (!name.ends_with(".safetensors")) refuse("index_bad_suffix", "a shard's name ends in .safetensors");
}

/// The pairs of tensor and file of an index.
std::vector<std::pair<std::string, std::string>> weight_map(const MappedFile& file) {
  const Json json = parse_json(text_of(file, kIndexBytes), file.path());
  const auto map = Config(json, file.path()).object("weight_map");
  require(map.has_value(), ErrorKind::corrupt_file, [&] {
    return ErrorInfo{.code = "config_missing_key",
                     .what = "there is no weight_map",
                     .file = file.path(),
                     .why = "an index says there which shard holds which tensor",
                     .todo = kFetchIndex};
  });
  std::vector<std::pair<std::string, std::string>> listed;
  for (const std::string& tensor : map->nulls())
    map->refuse("config_wrong_type", tensor, "the name of a shard belongs here", kFetchIndex);
  for (const std::string& tensor : map->keys()) {
    listed.emplace_back(tensor, map->text(tensor));
    check_shard_name(listed.back().second, tensor, file.path());
  }
  require(listed.size() <= kModelTensors, ErrorKind::corrupt_file, [&] {
    return ErrorInfo{
        .code = "too_many_tensors",
        .what = fmt::format("the index lists {} tensors, at most {} are read", listed.size(), kModelTensors),
        .file = file.path(),
        .why = "the largest published models have half as many",
        .todo = kFetchIndex};
  });
  return listed;
}

}  // namespace

void ModelFiles::add(std::shared_ptr<const MappedFile> file) {
  files_.push_back(std::make_unique<File>());
  File& added = *files_.back();
  added.mapped = std::move(file);
  added.header = parse_header(added.mapped->bytes(), added.mapped->path());
  for (std::size_t i = 0; i < added.header.names.size(); ++i)
    tensors_.push_back({added.header.names[i], &added.header.tensors[i], &added.mapped->path()});
}

void ModelFiles::sort() { std::stable_sort(tensors_.begin(), tensors_.end(), before); }

void refuse_gguf_alone(const ModelDirectory& directory, std::string_view lacking) {
  for (const std::string& entry : directory.entries())
    if (entry.ends_with(".gguf"))
      fail(ErrorKind::unsupported,
           {.code = "gguf_not_read",
            .what = fmt::format("there is no {}, but GGUF: \"{}\"", lacking, printable(entry)),
            .file = directory.path(),
            .why = "a directory may hold several GGUF models",
            .todo = "Give the .gguf file itself"});
}

ModelFiles ModelFiles::open(const ModelDirectory& directory) {
  ModelFiles model;
  if (directory.has(kSingle)) {
    model.add(directory.open(kSingle));
    model.sort();
    model.described_ = model.files_.front()->mapped->path();
    if (directory.has(kIndex))
      model.notes_.push_back(fmt::format("{} and {} are both there; the index is not read", kSingle, kIndex));
  } else if (directory.has(kIndex)) {
    model.open_shards(directory);
  } else {
    no_weights(directory);
  }
  return model;
}

void ModelFiles::open_shards(const ModelDirectory& directory) {
  const auto index = directory.open(kIndex);
  described_ = index->path();
  const auto listed = weight_map(*index);
  std::map<std::string, std::string> shards;  // file, and the first tensor in it
  for (const auto& [tensor, file] : listed) shards.emplace(file, tensor);
  for (const auto& shard : shards)
    require(directory.has_file(shard.first), ErrorKind::corrupt_file, [&] {
      return ErrorInfo{.code = "missing_shard",
                       .what = fmt::format("the index names the shard {}, which is not there", shard.first),
                       .file = index->path(),
                       .tensor = printable(shard.second),
                       .why = directory.has(shard.first)
                                  ? "something of that name is, but it is no file, or a link to none"
                                  : "the download is incomplete",
                       .todo = "Fetch the missing file; hf download completes what is missing"};
    });
  for (const auto& shard : shards) add(directory.open(shard.first));
  sort();
  keep_listed(listed);
}

std::span<const ModelTensor> ModelFiles::named(std::string_view name) const {
  const auto found = std::equal_range(tensors_.begin(), tensors_.end(), ModelTensor{.name = name}, before);
  return {found.first, found.second};
}

void ModelFiles::keep_listed(const std::vector<std::pair<std::string, std::string>>& listed) {
  std::vector<ModelTensor> kept;
  kept.reserve(listed.size());
  for (const auto& entry : listed) {
    const auto candidates = named(entry.first);
    const auto found = std::find_if(candidates.begin(), candidates.end(), [&](const ModelTensor& tensor) {
      return tensor.file->ends_with("/" + entry.second);
    });
    require(found != candidates.end(), ErrorKind::corrupt_file, [&] {
      return ErrorInfo{
          .code = candidates.empty() ? "index_names_missing_tensor" : "index_names_wrong_shard",
          .what = fmt::format("the index places a tensor in {}, which does not hold it", entry.second),
          .file = entry.second,
          .tensor = printable(entry.first),
          .why = candidates.empty() ? "no shard does" : fmt::format("{} does", *candidates.front().file),
          .todo = "The index and the shards are of different downloads: fetch them again"};
    });
    kept.push_back(*found);
  }
  std::swap(tensors_, kept);
  note_unlisted(kept);
}

void ModelFiles::note_unlisted(const std::vector<ModelTensor>& all) {
  for (const ModelTensor& tensor : all) {
    const auto kept = named(tensor.name);
    if (std::none_of(kept.begin(), kept.end(), [&](const auto& other) { return other.view == tensor.view; }))
      unlisted_.push_back(tensor);
  }
  if (unlisted_.empty()) return;
  notes_.push_back(
      fmt::format("{} tensors lie in shards and not in the index, and are left out: \"{}\" is the first",
                  unlisted_.size(), printable(unlisted_.front().name)));
}

std::vector<const ModelTensor*> ModelFiles::unlisted_below(std::string_view prefix) const {
  std::vector<const ModelTensor*> found;
  for (const ModelTensor& tensor : unlisted_)
    if (tensor.name.starts_with(prefix)) found.push_back(&tensor);
  return found;
}

std::span<const ModelTensor> ModelFiles::below(std::string_view prefix) const {
  const auto first = std::lower_bound(tensors_.begin(), tensors_.end(), ModelTensor{.name = prefix}, before);
  const auto last = std::find_if_not(
      first, tensors_.end(), [&](const ModelTensor& tensor) { return tensor.name.starts_with(prefix); });
  return {first, last};
}

const ModelTensor* ModelFiles::find(std::string_view name) const {
  const auto at = std::lower_bound(tensors_.begin(), tensors_.end(), ModelTensor{.name = name}, before);
  return at != tensors_.end() && at->name == name ? &*at : nullptr;
}

std::int64_t ModelFiles::file_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& file : files_) bytes += static_cast<std::int64_t>(file->mapped->bytes().size());
  return bytes;
}

std::vector<SourceFile> ModelFiles::sources() const {
  std::vector<SourceFile> all;
  for (const auto& file : files_) all.push_back(file->mapped->source());
  return all;
}

void ModelFiles::check_unchanged() const {
  for (const auto& file : files_) file->mapped->check_unchanged();
}

}  // namespace sluice::checkpoint
