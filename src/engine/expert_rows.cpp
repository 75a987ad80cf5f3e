// SPDX-License-Identifier: Apache-2.0
// Calls on rows that are already with their experts. To a backend these are tokens with one expert each; the
// rows that are used are listed, so that what lies between them costs nothing.
#include <algorithm>
#include <limits>
#include <string>

#include "core/error.h"
#include "engine/packed_layer.h"
#include "engine/places.h"
#include "oracle/oracle.h"

namespace sluice {
namespace {

/// Walks the used rows in ascending order.
class UsedRows {
 public:
  UsedRows(const ExpertRows& call, int local_experts) : call_(call), experts_(local_experts) {}

  int total() const {
    if (!call_.offsets.empty()) return call_.offsets.back();
    std::int64_t sum = 0;
    for (const std::int32_t count : call_.counts) sum += count;
    return static_cast<int>(sum);
  }

  struct Row {
    std::int32_t row, expert;
  };
  /// Must not be called more than total() times.
  Row next() {
    while (at_ == count(expert_)) {
      ++expert_;
      at_ = 0;
    }
    return {first(expert_) + at_++, expert_};
  }

 private:
  std::int32_t first(int expert) const {
    return call_.offsets.empty() ? expert * call_.max_tokens
                                 : call_.offsets[static_cast<std::size_t>(expert)];
  }
  std::int32_t count(int expert) const {
    if (expert >= experts_) return -1;
    const std::size_t e = static_cast<std::size_t>(expert);
    return call_.offsets.empty() ? call_.counts[e] : call_.offsets[e + 1] - call_.offsets[e];
  }

  ExpertRows call_;  // views
  int experts_;
  std::int32_t expert_ = 0, at_ = 0;
};

}  // namespace

/// A kernel counts tokens of top_k slots each; here a row is a slot.
int PackedLayer::tokens_of(int rows) const {
  const int top_k = spec().routed.top_k;
  return rows / top_k + (rows % top_k != 0);
}

RowsLayout PackedLayer::rows_layout(int rows) const {
  const std::size_t count = static_cast<std::size_t>(rows);
  Places places(aligned(routed_bytes(tokens_of(rows))));
  RowsLayout at;
  at.rows = places.take<std::int32_t>(count);
  at.ids = places.take<std::int32_t>(count);
  at.weights = places.take<float>(count);
  at.adapter_ids = places.take<std::int32_t>(count);
  at.bytes = places.end() + kAlign - 1;
  return at;
}

/// The most rows whose workspace is no larger than the call's.
int PackedLayer::rows_at_once(const ExpertRows& call, int used) const {
  const int countable = std::numeric_limits<int>::max() / spec().routed.hidden;
  const auto fits = [&](int rows) {
    return rows <= countable && rows_layout(rows).bytes <= call.workspace.size();
  };
  if (fits(used)) return used;
  int most = 0, too_many = used;
  while (too_many - most > 1) {
    const int middle = most + (too_many - most) / 2;
    (fits(middle) ? most : too_many) = middle;
  }
  require(most > 0, ErrorKind::invalid_argument, [&] {
    return ErrorInfo{.code = "workspace_too_small",
                     .what = "the workspace is too small for one row",
                     .why = std::to_string(call.workspace.size()) + " bytes given, " +
                            std::to_string(rows_layout(1).bytes) + " needed",
                     .todo =
                         "Give rows_workspace_bytes(rows); less than that splits the call, down to "
                         "rows_workspace_bytes(1)"};
  });
  return most;
}

void PackedLayer::run_rows(const ExpertRows& call) const {
  check(call);
  UsedRows used(call, spec().routed.local_experts);
  const int total = used.total();
  if (total == 0) return;
  if (!call.adapter_ids.empty()) {
    // Only of rows that are used: the others' are whatever the caller's buffer holds.
    UsedRows all(call, spec().routed.local_experts);
    for (int i = 0; i < total; ++i) {
      const std::int32_t row = all.next().row;
      check_adapter_id(call.adapter_ids[static_cast<std::size_t>(row)], row, call.adapters.size());
    }
  }
  const int step = rows_at_once(call, total);
  const RowsLayout at = rows_layout(step);
  auto* const rows = place<std::int32_t>(call.workspace, at.rows);
  auto* const ids = place<std::int32_t>(call.workspace, at.ids);
  auto* const weights = place<float>(call.workspace, at.weights);
  auto* const adapter_ids = place<std::int32_t>(call.workspace, at.adapter_ids);
  for (int done = 0; done < total; done += step) {
    const int part = std::min(step, total - done);
    UsedRows after = used;
    for (std::size_t group = 0; group < routed_.size(); ++group) {
      after = used;
      int count = 0;
      for (int i = 0; i < part; ++i) {
        const UsedRows::Row row = after.next();
        const GroupPlace& expert = places_[static_cast<std::size_t>(row.expert)];
        if (expert.group != group) continue;
        rows[count] = row.row;
        ids[count] = expert.local;
        weights[count] = call.weights == nullptr ? 1.0f : call.weights[row.row];
        adapter_ids[count++] =
            call.adapter_ids.empty() ? -1 : call.adapter_ids[static_cast<std::size_t>(row.row)];
      }
      if (count == 0) continue;
      const LoraCall lora{.adapters = call.adapters,
                          .ids = {adapter_ids, static_cast<std::size_t>(count)},
                          .positions = routed_[group].experts};
      // The ids are local ones: no map, and as many experts as are here.
      run_kernel(*routed_[group].packed, tokens_of(count),
                 {.input = call.hidden,
                  .routing = {ids, weights, count, 1},
                  .rows = {rows, static_cast<std::size_t>(count)},
                  .output = call.output,
                  .workspace = {place<std::byte>(call.workspace, 0), at.rows},
                  .executor = executor_.get(),
                  .lora = call.adapter_ids.empty() ? nullptr : &lora});
    }
    used = after;
  }
}

}  // namespace sluice
