// SPDX-License-Identifier: Apache-2.0
// validate(LayerSpec): the numbers of a spec make sense together.
#include <fmt/format.h>

#include <cmath>

#include "activation/activation.h"
#include "core/error.h"
#include "format/formats.h"
#include "sluice/spec.h"

namespace sluice {
namespace {

constexpr int kMostLoraRank = 65'536;  // beyond any width: an adapter that large is a slip

/// Throws invalid_argument "bad_spec". `whose` is "routed experts", "shared expert" or "router".
class Checker {
 public:
  explicit Checker(std::string_view whose) : whose_(whose) {}

  template <class... Args>
  void need(bool ok, fmt::format_string<Args...> why, const Args&... args) const {
    require(ok, ErrorKind::invalid_argument, [&] {
      return ErrorInfo{.code = "bad_spec",
                       .what = fmt::format("the spec of the {} does not make sense", whose_),
                       .why = fmt::vformat(why, fmt::make_format_args(args...)),
                       .todo = "Correct the spec; Checkpoint::spec fills one from a model's files"};
    });
  }

 private:
  std::string_view whose_;
};

void check_params(const ExpertsSpec& spec, const Checker& check) {
  const ActivationParams& params = spec.params;
  const activation::Reads reads = Activations::visit(spec.activation, []<class A>() { return A::reads; });
  const std::string_view name = spec.activation.str();
  check.need(params.limit > 0, "limit is {}; no limit is infinity, and a limit of 0 would leave nothing",
             params.limit);
  check.need(std::isfinite(params.slope) && std::isfinite(params.shift),
             "slope {} and shift {} must be finite", params.slope, params.shift);
  check.need(params.situ_beta > 0 && params.situ_linear_beta > 0,
             "situ_beta {} and situ_linear_beta {} must be positive; no saturation is infinity",
             params.situ_beta, params.situ_linear_beta);
  check.need(reads.saturation || (std::isinf(params.situ_beta) && std::isinf(params.situ_linear_beta)),
             "{} does not saturate, the spec says situ_beta {}, situ_linear_beta {}", name, params.situ_beta,
             params.situ_linear_beta);
  check.need(reads.limit || std::isinf(params.limit), "{} has no limit, the spec says {}", name,
             params.limit);
  check.need(reads.slope || params.slope == 1, "{} has no slope, the spec says {}", name, params.slope);
  check.need(reads.shift || params.shift == 0, "{} has no shift, the spec says {}", name, params.shift);
}

/// Formats with groups along a row have no partial group: 2880 columns are 90 groups of 32. Those of integers
/// may have one at the end, as GPTQ's files do: 2880 columns are 23 groups of 128.
void check_groups(Format format, const Grouping& grouping, int columns, const Checker& check) {
  const format::Geometry& shape = geometry(format);
  check.need(shape.integers || grouping == Grouping{}, "{} has groups of its own", format.str());
  check.need(grouping.columns >= 0, "{} columns share a scale", grouping.columns);
  const int group = shape.block_cols > 0 ? shape.block_cols : shape.group_cols;
  const bool whole = shape.group_rows != 1 || group == 0 || columns % group == 0;
  check.need(whole, "{} has a scale for {} columns, and {} columns do not divide", format.str(), group,
             columns);
}

void check_formats(const ExpertsSpec& spec, const MatrixFormats& formats, const Checker& check) {
  const bool gated = is_gated(spec.activation);
  check.need(gated == formats.gate.has_value(), "{} has {} gate matrix, the spec says otherwise",
             spec.activation.str(), gated ? "a" : "no");
  if (formats.gate) check_groups(*formats.gate, formats.gate_grouping, spec.hidden, check);
  check.need(formats.gate || formats.gate_grouping == Grouping{}, "a grouping of a gate that is not there");
  check_groups(formats.up, formats.up_grouping, spec.hidden, check);
  check_groups(formats.down, formats.down_grouping, spec.intermediate, check);
}

void check_others(const ExpertsSpec& spec, const Checker& check) {
  std::int32_t last = -1;
  for (const OtherFormats& other : spec.others) {
    check.need(other.expert > last && other.expert < spec.local_experts,
               "experts in other formats are listed in ascending order below {}, {} comes after {}",
               spec.local_experts, other.expert, last);
    last = other.expert;
    check.need(other.formats != spec.formats, "expert {} is listed as another with the formats of the rest",
               other.expert);
    check_formats(spec, other.formats, check);
  }
}

void check_experts(const ExpertsSpec& spec, const Checker& check) {
  check.need(spec.hidden > 0 && spec.intermediate > 0, "hidden {} and intermediate {} must be positive",
             spec.hidden, spec.intermediate);
  check.need(spec.experts > 0, "{} experts", spec.experts);
  check.need(spec.local_experts >= 0 && spec.local_experts <= spec.experts, "{} of {} experts are here",
             spec.local_experts, spec.experts);
  check.need(spec.top_k > 0 && spec.top_k <= spec.experts, "top_k {} of {} experts", spec.top_k,
             spec.experts);
  check.need(spec.lora_rank >= 0 && spec.lora_rank <= kMostLoraRank, "lora_rank is {}, at most {}",
             spec.lora_rank, kMostLoraRank);
  check_params(spec, check);
  check_formats(spec, spec.formats, check);
  check_others(spec, check);
}

void check_router(const RouterSpec& router, const ExpertsSpec& routed) {
  const Checker check("router");
  check.need(router.experts == routed.experts && router.top_k == routed.top_k,
             "it selects {} of {}, the experts are {} of {}", router.top_k, router.experts, routed.top_k,
             routed.experts);
  check.need(router.groups > 0 && router.experts % router.groups == 0,
             "{} experts do not divide into {} groups", router.experts, router.groups);
  check.need(router.groups_kept > 0 && router.groups_kept <= router.groups, "{} of {} groups are kept",
             router.groups_kept, router.groups);
  check.need(router.top_k <= router.groups_kept * (router.experts / router.groups),
             "top_k {} is more than the experts of {} groups", router.top_k, router.groups_kept);
  check.need(std::isfinite(router.scale), "scale is {}", router.scale);
}

void check_shared(const ExpertsSpec& shared, const LayerSpec& layer) {
  const Checker check("shared expert");
  check_experts(shared, check);
  check.need(shared.hidden == layer.hidden(), "hidden {}, the {} {}", shared.hidden,
             layer.latent ? "layer has" : "routed experts have", layer.hidden());
  check.need(shared.experts == 1 && shared.local_experts == 1 && shared.top_k == 1,
             "{} experts ({} here), top {}; several shared experts are one wider one", shared.experts,
             shared.local_experts, shared.top_k);
  check.need(!shared.weight_on_input, "weight_on_input is for routed experts");
}

void check_latent(const LatentSpec& latent) {
  const Checker check("projections around latent experts");
  check.need(latent.hidden > 0, "hidden {} must be positive", latent.hidden);
  const float epsilon = latent.norm_epsilon.value_or(1.0f);
  check.need(std::isfinite(epsilon) && epsilon > 0,
             "the norm's epsilon is {}; without it a row of zeros has "
             "no norm",
             epsilon);
}

}  // namespace

void validate(const LayerSpec& spec) {
  check_experts(spec.routed, Checker("routed experts"));
  check_router(spec.router, spec.routed);
  if (spec.latent) check_latent(*spec.latent);
  if (spec.shared) check_shared(spec.shared->experts, spec);
}

}  // namespace sluice
