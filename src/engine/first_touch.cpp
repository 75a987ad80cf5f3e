// SPDX-License-Identifier: Apache-2.0
#include "engine/first_touch.h"

#include <fmt/format.h>

#include <utility>

#include "core/checksum.h"
#include "core/error.h"
#include "routing/group.h"

namespace sluice {

void CacheLog::add(const CacheReport& more) {
  const std::lock_guard<std::mutex> lock(mutex_);
  report_.loaded += more.loaded;
  report_.written += more.written;
  report_.repaired += more.repaired;
  report_.notes.insert(report_.notes.end(), more.notes.begin(), more.notes.end());
}

CacheReport CacheLog::report() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return report_;
}

FirstTouch::FirstTouch(PackedExperts& packed, PackedFile file, std::string path, Source source, CacheLog& log)
    : packed_(packed),
      file_(std::move(file)),
      path_(std::move(path)),
      source_(std::move(source)),
      log_(log),
      left_(file_.runs.count),
      seen_(file_.runs.count),
      wrong_(file_.runs.count),
      listed_(file_.runs.count) {
  list_.reserve(file_.runs.count);
}

void FirstTouch::look(const Forward& call) {
  if (left_.load(std::memory_order_acquire) == 0) return;
  const std::ptrdiff_t slots = std::ptrdiff_t{call.routing.tokens} * call.routing.top_k;
  const auto local_of = [&](std::ptrdiff_t slot) {
    return local_expert(call.routing.ids[slot], call.expert_map, packed_.spec.experts);
  };
  std::ptrdiff_t first = 0;
  while (first < slots && !is_new(local_of(first))) ++first;
  if (first == slots) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  start_list();
  for (std::ptrdiff_t slot = first; slot < slots; ++slot) list(local_of(slot));
  compare(*call.executor);
  for (const std::int32_t local : list_) {
    if (wrong_[static_cast<std::size_t>(local)]) repair(local, *call.executor);
    mark(local);
  }
}

void FirstTouch::start_list() {
  for (const std::int32_t local : list_) listed_[static_cast<std::size_t>(local)] = false;
  list_.clear();
}

/// Unless it is no longer new, or listed already.
void FirstTouch::list(std::int32_t local) {
  if (!is_new(local) || listed_[static_cast<std::size_t>(local)]) return;
  listed_[static_cast<std::size_t>(local)] = true;
  list_.push_back(local);
}

/// Sets wrong_ of those that are listed.
void FirstTouch::compare(Executor& executor) {
  const std::size_t blocks = file_.runs.blocks();
  for (const std::int32_t local : list_) wrong_[static_cast<std::size_t>(local)] = false;
  parallel_for(executor, static_cast<int>(list_.size() * blocks), [&](int task, int) {
    const auto expert = static_cast<std::size_t>(list_[static_cast<std::size_t>(task) / blocks]);
    const std::size_t block = static_cast<std::size_t>(task) % blocks;
    if (checksum(file_.runs.block(file_.body.get(), expert, block)) != file_.sums[expert * blocks + block])
      wrong_[expert] = true;
  });
}

void FirstTouch::repair(std::int32_t local, Executor& executor) {
  const auto expert = static_cast<std::size_t>(local);
  remove_packed(path_, file_);
  packed_.backend.update(packed_, {local, source_.experts[expert], source_.owner, executor});
  bool whole = true;
  for (std::size_t block = 0; block < file_.runs.blocks(); ++block)
    whole = whole && checksum(file_.runs.block(file_.body.get(), expert, block)) ==
                         file_.sums[expert * file_.runs.blocks() + block];
  log_.add({.repaired = 1,
            .notes = {fmt::format("{} was damaged (expert {}); it is packed anew, and the file is removed",
                                  path_, local)}});
  require(whole, ErrorKind::corrupt_file, [&] {
    return ErrorInfo{.code = "cache_contradicts_weights",
                     .what = fmt::format("expert {}, packed anew, is not what the cache holds", local),
                     .file = path_,
                     .why = "the weights changed and their files' sizes and times did not",
                     .todo = "Make the layer again: the file has been removed"};
  });
}

/// The last one lets go of the source.
void FirstTouch::mark(std::int32_t local) {
  const auto expert = static_cast<std::size_t>(local);
  if (seen_[expert].exchange(true, std::memory_order_acq_rel)) return;
  if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1) source_ = {};
}

void FirstTouch::replaced(std::int32_t local) {
  const std::lock_guard<std::mutex> lock(mutex_);
  mark(local);
}

bool FirstTouch::all_whole(Executor& executor) {
  const std::lock_guard<std::mutex> lock(mutex_);
  start_list();
  for (std::size_t expert = 0; expert < seen_.size(); ++expert) list(static_cast<std::int32_t>(expert));
  compare(executor);
  bool whole = true;
  for (const std::int32_t local : list_) {
    whole = whole && !wrong_[static_cast<std::size_t>(local)];
    mark(local);
  }
  return whole;
}

}  // namespace sluice
