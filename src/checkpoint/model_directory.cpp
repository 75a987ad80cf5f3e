// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/model_directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <system_error>

#include "checkpoint/text.h"
#include "core/error.h"

namespace sluice::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kReferenceBytes = 1024;  // refs/main holds one commit hash

bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

bool is_component(std::string_view text) {
  constexpr std::string_view kAllowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  return !text.empty() && text.front() != '.' && text.find_first_not_of(kAllowed) == text.npos;
}

/// "org/name@revision" in parts.
struct CacheName {
  std::string organisation, name, revision;
};

std::optional<CacheName> parse_cache_name(std::string_view model) {
  const std::size_t at = model.find('@');
  const std::string_view repository = model.substr(0, at);
  const std::string_view revision = at == model.npos ? "main" : model.substr(at + 1);
  const std::size_t slash = repository.find('/');
  if (slash == repository.npos) return std::nullopt;
  const std::string_view organisation = repository.substr(0, slash), name = repository.substr(slash + 1);
  if (!is_component(organisation) || !is_component(name)) return std::nullopt;
  for (std::size_t from = 0; from <= revision.size();) {  // refs may be nested: "refs/pr/1"
    const std::size_t to = std::min(revision.find('/', from), revision.size());
    if (!is_component(revision.substr(from, to - from))) return std::nullopt;
    from = to + 1;
  }
  return CacheName{std::string(organisation), std::string(name), std::string(revision)};
}

/// The snapshot directory of a revision, or nothing.
std::optional<fs::path> snapshot(const fs::path& repository, const std::string& revision) {
  const fs::path direct = repository / "snapshots" / revision;
  if (is_folder(direct)) return direct;
  const fs::path reference = repository / "refs" / revision;
  std::error_code error;
  if (!fs::is_regular_file(reference, error)) return std::nullopt;
  std::string commit = text_of(*MappedFile::open(reference.string()), kReferenceBytes);
  commit.erase(commit.find_last_not_of(" \r\n") + 1);
  if (!is_component(commit)) return std::nullopt;
  const fs::path pointed = repository / "snapshots" / commit;
  return is_folder(pointed) ? std::optional(pointed) : std::nullopt;
}

fs::path find_in_cache(const CacheName& wanted, const std::string& cache_root) {
  const std::string folder = fmt::format("models--{}--{}", wanted.organisation, wanted.name);
  const fs::path root(cache_root);
  for (const fs::path& repository : {root / "hub" / folder, root / folder}) {
    if (!is_folder(repository)) continue;
    if (const auto found = snapshot(repository, wanted.revision)) return *found;
    fail(ErrorKind::io, {.code = "revision_not_in_cache",
                         .what = fmt::format("the cache has {}/{}, but not its revision \"{}\"",
                                             wanted.organisation, wanted.name, wanted.revision),
                         .file = repository.string(),
                         .todo = fmt::format("Fetch it with: hf download {}/{} --revision {}",
                                             wanted.organisation, wanted.name, wanted.revision)});
  }
  fail(ErrorKind::io,
       {.code = "model_not_in_cache",
        .what = fmt::format("{}/{} is neither a directory nor in the Hugging Face cache", wanted.organisation,
                            wanted.name),
        .file = cache_root,
        .why = "nothing is ever downloaded",
        .todo = fmt::format("Fetch it with: hf download {}/{}", wanted.organisation, wanted.name)});
}

bool lies_below(const fs::path& path, const fs::path& root) {
  return std::mismatch(root.begin(), root.end(), path.begin(), path.end()).first == root.end();
}

}  // namespace

ModelDirectory ModelDirectory::find(const std::string& model, const std::string& cache_root) {
  if (is_folder(model)) return ModelDirectory(model);
  std::error_code error;
  require(!fs::exists(model, error), ErrorKind::io, [&] {
    return ErrorInfo{.code = "not_a_directory",
                     .what = "a model is a directory, this is a file",
                     .file = model,
                     .todo =
                         "Give the directory that holds config.json and the .safetensors files, or a .gguf "
                         "file"};
  });
  const auto name = cache_root.empty() ? std::nullopt : parse_cache_name(model);
  if (name) return ModelDirectory(find_in_cache(*name, cache_root));
  fail(ErrorKind::io, {.code = "no_such_model",
                       .what = "there is no such directory",
                       .file = printable(model),
                       .todo = "Give a directory with config.json and .safetensors files, or a name like "
                               "openai/gpt-oss-20b of a model in the Hugging Face cache"});
}

ModelDirectory::ModelDirectory(const fs::path& path) : shown_(path.string()) {
  std::error_code error;
  root_ = fs::canonical(path, error);
  require(!error, ErrorKind::io, [&] {
    return ErrorInfo{.code = "cannot_open",
                     .what = "the directory cannot be read",
                     .file = shown_,
                     .why = error.message(),
                     .todo = "Check that this user may read it"};
  });
  const fs::path snapshots = root_.parent_path(), repository = snapshots.parent_path();
  if (snapshots.filename() == "snapshots" && repository.filename().string().starts_with("models--"))
    blobs_ = repository / "blobs";
}

bool ModelDirectory::has(std::string_view name) const {
  std::error_code error;
  return fs::exists(fs::symlink_status(root_ / name, error));
}

bool ModelDirectory::has_file(std::string_view name) const {
  std::error_code error;
  return fs::is_regular_file(root_ / name, error);
}

fs::path ModelDirectory::resolve(std::string_view name) const {
  const fs::path path = root_ / name;
  std::error_code error;
  if (!fs::is_symlink(path, error)) return path;
  const fs::path target = fs::canonical(path, error);
  const std::string shown = (fs::path(shown_) / name).string();
  require(!error, ErrorKind::io, [&] {
    return ErrorInfo{.code = "dangling_link",
                     .what = "the link leads to a file that is not there",
                     .file = shown,
                     .why = error.message(),
                     .todo = "The download is incomplete: run hf download again"};
  });
  const bool inside = lies_below(target, root_) || (!blobs_.empty() && target.parent_path() == blobs_);
  require(inside, ErrorKind::corrupt_file, [&] {
    return ErrorInfo{
        .code = "link_out",
        .what = fmt::format("the link leads out of the model's directory, to {}", target.string()),
        .file = shown,
        .why =
            "only links inside the directory, and from a Hugging Face snapshot to its own blobs, are "
            "followed",
        .todo = "Copy the file into the directory if you trust it"};
  });
  return target;
}

std::shared_ptr<const MappedFile> ModelDirectory::open(std::string_view name) const {
  return MappedFile::open_resolved(resolve(name).string(), (fs::path(shown_) / name).string());
}

std::vector<std::string> ModelDirectory::entries() const {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(root_, error), end; !error && it != end; it.increment(error))
    names.push_back(it->path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace sluice::checkpoint
