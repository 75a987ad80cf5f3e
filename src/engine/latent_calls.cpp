// SPDX-License-Identifier: Apache-2.0
// Calls on a layer whose experts are latent: the projections around a flat call's experts, and alone.
#include <algorithm>

#include "engine/need.h"
#include "engine/packed_layer.h"
#include "engine/places.h"

namespace sluice {
namespace {

constexpr Need need("See Layer::to_latent in sluice/layer.h");

void check_ends(int rows, const void* from, const void* to) {
  need(rows >= 0 && (rows == 0 || (from && to)), "bad_rows", "projections of {} rows: {}", rows,
       rows < 0 ? "there are none below 0"
       : from   ? "no output"
                : "no input");
}

}  // namespace

/// The rows as float32, projected into `out`.
void PackedLayer::project(const RowsView& hidden, const LatentPlaces& at, std::span<std::byte> workspace,
                          float* out) const {
  float* const rows = place<float>(workspace, at.rows);
  const std::ptrdiff_t width = hidden.width;
  parallel_for(*executor_, hidden.rows, [&](int row, int) { read_row(hidden, row, rows + row * width); });
  latent_->to_latent(rows, hidden.rows, *executor_, place<float>(workspace, at.decoded), out);
}

void PackedLayer::project_back(const float* sums, int tokens, const LatentPlaces& at,
                               std::span<std::byte> workspace, float* out) const {
  latent_->from_latent(sums, tokens, *executor_, place<float>(workspace, at.decoded),
                       place<float>(workspace, at.projected), out);
}

/// The experts between their projections. Either output may be null.
void PackedLayer::run_latent(const LayerCall& call, const WorkspaceLayout& at, const Routing& routing,
                             float* routed_out) const {
  const int width = spec().routed.hidden, tokens = call.hidden.rows;
  float* const projected = place<float>(call.workspace, at.latent.projected);
  float* const sums = call.latent_out ? call.latent_out : place<float>(call.workspace, at.latent.sums);
  project(call.hidden, at.latent, call.workspace, projected);
  LayerCall inner = call;
  inner.hidden = {reinterpret_cast<const std::byte*>(projected), DType::f32, tokens, width,
                  std::ptrdiff_t{width} * std::ptrdiff_t{sizeof(float)}};
  run_routed(inner, at, routing, sums);
  if (routed_out) project_back(sums, tokens, at.latent, call.workspace, routed_out);
}

void PackedLayer::check_latent() const {
  require(latent_.has_value(), ErrorKind::invalid_argument, [&] {
    return ErrorInfo{.code = "no_latent",
                     .what = "the layer has no projections around its experts",
                     .why = "its experts work on the rows as they are (LayerSpec::latent is empty)",
                     .todo = "Give its experts the rows themselves"};
  });
}

void PackedLayer::to_latent(const RowsView& hidden, float* latent, std::span<std::byte> workspace) const {
  check_latent();
  check_rows(hidden, spec().hidden());
  check_ends(hidden.rows, hidden.data, latent);
  if (hidden.rows == 0) return;
  const int step = tokens_at_once(hidden.rows, workspace.size());
  const LatentPlaces at = layout(step).latent;
  for (std::int64_t first = 0; first < hidden.rows; first += step) {
    RowsView part = hidden;
    part.data += first * hidden.row_stride;
    part.rows = std::min(step, hidden.rows - static_cast<int>(first));
    project(part, at, workspace, latent + first * spec().routed.hidden);
  }
}

void PackedLayer::from_latent(const float* sums, int tokens, float* output,
                              std::span<std::byte> workspace) const {
  check_latent();
  check_ends(tokens, sums, output);
  if (tokens == 0) return;
  const int step = tokens_at_once(tokens, workspace.size());
  const LatentPlaces at = layout(step).latent;
  for (std::int64_t first = 0; first < tokens; first += step)
    project_back(sums + first * spec().routed.hidden, std::min(step, tokens - static_cast<int>(first)), at,
                 workspace, output + first * spec().hidden());
}

}  // namespace sluice
