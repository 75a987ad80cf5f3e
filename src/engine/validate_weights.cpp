// SPDX-License-Identifier: Apache-2.0
// validate(LayerSpec, LayerWeights): the views have the shapes, formats and biases that the spec promises.
// The tensor named in an error is the place in LayerWeights, for example routed[17].down.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "engine/validate_parts.h"
#include "format/formats.h"
#include "format/fp4_blocks.h"
#include "format/scales.h"
#include "sluice/spec.h"

namespace sluice {
namespace {

/// Throws invalid_argument "bad_weights" about one view.
class Checker {
 public:
  explicit Checker(std::string where) : where_(std::move(where)) {}

  template <class... Args>
  void need(bool ok, fmt::format_string<Args...> why, const Args&... args) const {
    require(ok, ErrorKind::invalid_argument, [&] {
      return ErrorInfo{.code = "bad_weights",
                       .what = "the weights are not what the spec promises",
                       .tensor = where_,
                       .why = fmt::vformat(why, fmt::make_format_args(args...)),
                       .todo = "Make the views fit the spec; Checkpoint::weights makes both from one file"};
    });
  }

  Checker at(std::string_view part) const { return Checker(fmt::format("{}.{}", where_, part)); }

 private:
  std::string where_;
};

void check_scales(const WeightMatrix& matrix, const Checker& check) {
  const format::Geometry& shape = geometry(matrix.format);
  const float second = matrix.second_scale;
  check.need(shape.second_scale || second == 1.0f, "a second scale of {}, but {} has none", second,
             matrix.format.str());
  check.need(std::isfinite(second) && second > 0, "a second scale of {}", second);
  if (!shape.scaled) return;
  check.need(matrix.scales.data != nullptr, "{} without scales", matrix.format.str());
  check.need(accepts_scales(matrix.format, matrix.scales.dtype), "scales of {} are {}", matrix.format.str(),
             name(matrix.scales.dtype));
}

void check_integers(const WeightMatrix& matrix, const Grouping& want, const Checker& check) {
  const IntegerParts& parts = matrix.integers;
  check.need(parts.grouping == want, "it is {}, the spec says {}",
             storage_text(matrix.format, parts.grouping), storage_text(matrix.format, want));
  check.need((parts.zeros != nullptr) == want.zero_points, "zero points: {}",
             want.zero_points ? "missing" : "the spec has none");
  check.need((parts.column_groups != nullptr) == want.act_order, "order of columns: {}",
             want.act_order ? "missing" : "the spec has none");
  check.need(is_integer(matrix.format) || parts.zero_offset == 0, "{} has no zero points",
             matrix.format.str());
  const bool awq = parts.codes.packing == Packing::awq || parts.zeros_grid.packing == Packing::awq;
  check.need(!awq || geometry(matrix.format).code_bits == 4, "AWQ packs 4 bits, not those of {}",
             matrix.format.str());
  if (!want.act_order) return;
  const std::int64_t groups = format::groups_of_row(matrix);
  for (std::int64_t c = 0; c < matrix.cols; ++c) {
    const std::int64_t group = format::group_of_column(matrix, c);
    check.need(group >= 0 && group < groups, "column {} is in group {} of {}", c, group, groups);
  }
}

void check_blocks(const WeightMatrix& matrix, const Checker& check) {
  if (matrix.blocks.columns == 0) return;
  const format::Geometry& shape = geometry(matrix.format);
  check.need(format::blocks_are_known(matrix), "{} in blocks of {} columns and {} bytes", matrix.format.str(),
             matrix.blocks.columns, matrix.blocks.bytes);
  check.need(matrix.cols % matrix.blocks.columns == 0, "{} columns in blocks of {}", matrix.cols,
             matrix.blocks.columns);
  check.need(shape.scaled && bits(matrix.scales.dtype) == 8, "scales of {} in blocks",
             name(matrix.scales.dtype));
}

void check_matrix(const WeightMatrix& matrix, const WeightMatrix& want, const Checker& check) {
  check.need(matrix.format == want.format, "it is {}, the spec says {}", matrix.format.str(),
             want.format.str());
  check.need(matrix.rows == want.rows && matrix.cols == want.cols, "it is {}x{}, the spec says {}x{}",
             matrix.rows, matrix.cols, want.rows, want.cols);
  check.need(matrix.codes != nullptr, "no data");
  const bool by_stride =
      geometry(matrix.format).code_bits >= 8 && !is_integer(matrix.format) && !is_ggml_block(matrix.format);
  check.need(!by_stride || matrix.cols == 1 || matrix.col_stride != 0, "col_stride is 0");
  check_scales(matrix, check);
  check_blocks(matrix, check);
  check_integers(matrix, want.integers.grouping, check);
}

void check_vector(const VectorView& vector, bool wanted, std::int64_t size, const Checker& check) {
  check.need(static_cast<bool>(vector) == wanted, "{}", wanted ? "missing" : "the spec has none");
  if (!wanted) return;
  check.need(vector.size == size, "{} elements, the spec says {}", vector.size, size);
  check.need(format::is_number(vector.dtype), "{} is no type for it", name(vector.dtype));
}

void check_expert(const ExpertWeights& expert, const ExpertsSpec& spec, const MatrixFormats& formats,
                  const Checker& check) {
  const auto wide = [&](Format format, const Grouping& grouping) {
    return WeightMatrix{
        .format = format, .rows = spec.intermediate, .cols = spec.hidden, .integers = {.grouping = grouping}};
  };
  WeightMatrix down = wide(formats.down, formats.down_grouping);
  std::swap(down.rows, down.cols);
  const bool gated = formats.gate.has_value();
  check.need(expert.gate.has_value() == gated, "gate: {}", gated ? "missing" : "the activation has none");
  if (gated) check_matrix(*expert.gate, wide(*formats.gate, formats.gate_grouping), check.at("gate"));
  check_matrix(expert.up, wide(formats.up, formats.up_grouping), check.at("up"));
  check_matrix(expert.down, down, check.at("down"));
  check_vector(expert.gate_bias, spec.gate_up_bias && gated, spec.intermediate, check.at("gate_bias"));
  check_vector(expert.up_bias, spec.gate_up_bias, spec.intermediate, check.at("up_bias"));
  check_vector(expert.down_bias, spec.down_bias, spec.hidden, check.at("down_bias"));
}

void check_experts(std::span<const ExpertWeights> experts, const ExpertsSpec& spec, std::string_view set) {
  Checker(std::string(set))
      .need(std::ssize(experts) == spec.local_experts, "{} experts, the spec says {}", experts.size(),
            spec.local_experts);
  for (std::size_t e = 0; e < experts.size(); ++e)
    check_expert(experts[e], spec, spec.formats_of(static_cast<std::int32_t>(e)),
                 Checker(fmt::format("{}[{}]", set, e)));
}

/// A router may be left out whole, for callers that bring their own logits or routing; what is there must
/// fit.
void check_router(const RouterWeights& weights, const LayerSpec& spec) {
  const RouterSpec& router = spec.router;
  const Checker check("router");
  const bool whole = weights.weight.has_value();
  if (whole) {
    check_matrix(*weights.weight,
                 {.format = weights.weight->format, .rows = router.experts, .cols = spec.hidden()},
                 check.at("weight"));
    check.at("weight").need(!geometry(weights.weight->format).scaled, "{}, but routers are plain numbers",
                            weights.weight->format.str());
  }
  const auto check_optional = [&](const VectorView& vector, bool in_spec, std::string_view part) {
    if (vector || (whole && in_spec)) check_vector(vector, in_spec, router.experts, check.at(part));
  };
  check_optional(weights.bias, router.bias, "bias");
  check_optional(weights.selection_bias, router.selection_bias, "selection_bias");
  check_optional(weights.expert_scale, router.expert_scale, "expert_scale");

  const Checker table = check.at("table");
  table.need(weights.table.empty() || router.by_token_id, "the spec does not route by token id");
  table.need(!weights.table.empty() || !whole || !router.by_token_id, "missing, the spec routes by token id");
  table.need(std::ssize(weights.table) % router.top_k == 0, "{} ids do not divide into rows of top_k {}",
             weights.table.size(), router.top_k);
  const auto outside =
      std::ranges::find_if(weights.table, [&](std::int32_t id) { return id < 0 || id >= router.experts; });
  table.need(outside == weights.table.end(), "expert {} of {}", outside == weights.table.end() ? 0 : *outside,
             router.experts);
}

}  // namespace

void validate_routed(const LayerSpec& spec, int local, const ExpertWeights& weights) {
  const Checker routed("routed");
  const ExpertsSpec& experts = spec.routed;
  routed.need(local >= 0 && local < experts.local_experts, "no expert {}, the spec says {}", local,
              experts.local_experts);
  check_expert(weights, experts, experts.formats_of(local), Checker(fmt::format("routed[{}]", local)));
}

void validate_shared(const LayerSpec& spec, const ExpertWeights& weights, const VectorView& gate) {
  Checker("shared").need(spec.shared.has_value(), "the spec has no shared expert");
  check_expert(weights, spec.shared->experts, spec.shared->experts.formats, Checker("shared[0]"));
  check_vector(gate, spec.shared->sigmoid_gate, spec.hidden(), Checker("shared_gate"));
}

void validate_router(const LayerSpec& spec, const RouterWeights& weights) { check_router(weights, spec); }

void validate_latent(const LayerSpec& spec, const std::optional<LatentWeights>& weights) {
  const Checker check("latent");
  check.need(weights.has_value() == spec.latent.has_value(), "{}",
             spec.latent ? "missing" : "the spec has no latent experts");
  if (!spec.latent) return;
  const auto projection = [&](const WeightMatrix& matrix, std::int64_t rows, std::int64_t cols,
                              std::string_view part) {
    WeightMatrix want{.format = matrix.format, .rows = rows, .cols = cols};
    want.integers.grouping = matrix.integers.grouping;
    check_matrix(matrix, want, check.at(part));
  };
  projection(weights->in, spec.routed.hidden, spec.hidden(), "in");
  projection(weights->out, spec.hidden(), spec.routed.hidden, "out");
  check_vector(weights->norm, spec.latent->norm_epsilon.has_value(), spec.routed.hidden, check.at("norm"));
}

void validate(const LayerSpec& spec, const LayerWeights& weights) {
  validate(spec);
  check_experts(weights.routed, spec.routed, "routed");
  if (spec.shared) {
    check_experts(weights.shared, spec.shared->experts, "shared");
  } else {
    Checker("shared").need(weights.shared.empty(), "the spec has no shared expert");
  }
  check_vector(weights.shared_gate, spec.shared && spec.shared->sigmoid_gate, spec.hidden(),
               Checker("shared_gate"));
  check_router(weights.router, spec);
  validate_latent(spec, weights.latent);
}

}  // namespace sluice
