// SPDX-License-Identifier: Apache-2.0
// TensorFile: a mapped file and its header.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "checkpoint/header.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/text.h"
#include "core/error.h"
#include "sluice/checkpoint.h"

namespace sluice {

struct TensorFile::State {
  std::shared_ptr<const checkpoint::MappedFile> file;
  checkpoint::Header header;
  std::vector<std::size_t> by_name;  // positions in the header, sorted by name

  const TensorView* find(std::string_view name) const {
    const auto& names = header.names;
    const auto at =
        std::lower_bound(by_name.begin(), by_name.end(), name,
                         [&](std::size_t i, std::string_view wanted) { return names[i] < wanted; });
    return at != by_name.end() && names[*at] == name ? &header.tensors[*at] : nullptr;
  }
};

namespace {

/// Up to three names that agree with `name` for as long as possible from the end: a wrong prefix is the usual
/// mistake.
std::string nearest(const std::vector<std::string>& names, std::string_view name) {
  const auto common_end = [&](const std::string& other) {
    return std::mismatch(name.rbegin(), name.rend(), other.rbegin(), other.rend()).first - name.rbegin();
  };
  std::vector<std::string> best(std::min<std::size_t>(3, names.size()));
  std::partial_sort_copy(names.begin(), names.end(), best.begin(), best.end(),
                         [&](const auto& a, const auto& b) { return common_end(a) > common_end(b); });
  std::string text;
  for (const std::string& one : best) text += (text.empty() ? "" : ", ") + checkpoint::printable(one);
  return text;
}

}  // namespace

TensorFile TensorFile::open(const std::string& path) {
  auto state = std::make_shared<State>();
  state->file = checkpoint::MappedFile::open(path);
  state->header = checkpoint::parse_header(state->file->bytes(), path);
  const auto& names = state->header.names;
  state->by_name.resize(names.size());
  std::iota(state->by_name.begin(), state->by_name.end(), std::size_t{0});
  std::sort(state->by_name.begin(), state->by_name.end(),
            [&](auto a, auto b) { return names[a] < names[b]; });
  TensorFile opened;
  opened.state_ = std::move(state);
  return opened;
}

const std::string& TensorFile::path() const { return state_->file->path(); }
const std::vector<std::string>& TensorFile::names() const { return state_->header.names; }
const std::map<std::string, std::string>& TensorFile::metadata() const { return state_->header.metadata; }
std::shared_ptr<const void> TensorFile::owner() const { return state_; }

bool TensorFile::has(std::string_view name) const { return state_->find(name) != nullptr; }

const TensorView& TensorFile::at(std::string_view name) const {
  const TensorView* tensor = state_->find(name);
  require(tensor != nullptr, ErrorKind::corrupt_file, [&] {
    return ErrorInfo{
        .code = "missing_tensor",
        .what = "the file has no such tensor",
        .file = path(),
        .tensor = checkpoint::printable(name),
        .why = names().empty() ? "it has none at all" : fmt::format("nearest are {}", nearest(names(), name)),
        .todo = "Check the spelling, and that this is the file that was meant"};
  });
  return *tensor;
}

}  // namespace sluice
