// SPDX-License-Identifier: Apache-2.0
// What can be said of the matrices of a layer together, and of the layers together.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "format/e4m3.h"
#include "format/formats.h"
#include "format/scales.h"
#include "lint/findings.h"
#include "lint/usual.h"

namespace sluice::linting {
namespace {

constexpr Part kRouted[] = {Part::gate, Part::up, Part::down};
constexpr float kE4m3Largest = format::kE4m3Max;

/// Sets of equal ones among `all`, by a hash first and byte by byte then.
template <class HashOf, class Same>
std::vector<std::vector<std::size_t>> equal_sets(std::size_t count, HashOf hash_of, Same same) {
  std::map<std::uint64_t, std::vector<std::vector<std::size_t>>> by_hash;
  for (std::size_t i = 0; i < count; ++i) {
    auto& sets = by_hash[hash_of(i)];
    const auto set = std::find_if(sets.begin(), sets.end(),
                                  [&](const std::vector<std::size_t>& one) { return same(one.front(), i); });
    if (set == sets.end())
      sets.push_back({i});
    else
      set->push_back(i);
  }
  std::vector<std::vector<std::size_t>> found;
  for (auto& [hash, sets] : by_hash)
    for (auto& set : sets)
      if (set.size() > 1) found.push_back(std::move(set));
  return found;
}

/// The matrices of an expert, in the order of kRouted.
using Expert = std::vector<const Subject*>;

std::vector<Expert> experts_of(const std::vector<Subject>& subjects) {
  std::vector<Expert> experts;
  for (const Part part : kRouted)
    for (const Subject* subject : of_part(subjects, part)) {
      const auto e = static_cast<std::size_t>(subject->expert);
      if (experts.size() <= e) experts.resize(e + 1);
      experts[e].push_back(subject);
    }
  return experts;
}

bool same_expert(const Expert& a, const Expert& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](auto* left, auto* right) {
           return left->facts.hash == right->facts.hash && same_matrix(*left->matrix, *right->matrix);
         });
}

Finding duplicates(const LayerFindings& findings, std::string_view matrix, std::vector<int> experts) {
  const bool whole = matrix.empty();
  return {.severity = Severity::warning,
          .code = whole ? "duplicate_experts" : "duplicate_matrices",
          .layer = findings.layer(),
          .matrix = std::string(matrix),
          .experts = experts,
          .what = fmt::format("experts {} {} byte for byte", fmt::join(experts, ", "),
                              whole ? "are the same" : "have the same matrix"),
          .todo = "Check that each expert was saved under its own number"};
}

/// Experts that are equal, and then matrices of experts that are not.
void judge_duplicates(const std::vector<Subject>& subjects, LayerFindings& findings) {
  const std::vector<Expert> experts = experts_of(subjects);
  const auto all_zero = [&](std::size_t e) {
    return std::all_of(experts[e].begin(), experts[e].end(), [](auto* one) { return one->facts.all_zero(); });
  };
  std::vector<std::size_t> set_of(experts.size());
  for (std::size_t e = 0; e < set_of.size(); ++e) set_of[e] = e;
  for (const auto& set : equal_sets(
           experts.size(), [&](std::size_t e) { return experts[e].empty() ? e : experts[e][0]->facts.hash; },
           [&](std::size_t a, std::size_t b) { return same_expert(experts[a], experts[b]); })) {
    for (const std::size_t e : set) set_of[e] = set.front();
    if (!all_zero(set.front())) findings.add(duplicates(findings, {}, {set.begin(), set.end()}));
  }
  for (const Part part : kRouted) {
    const auto all = of_part(subjects, part);
    for (const auto& set : equal_sets(
             all.size(), [&](std::size_t i) { return all[i]->facts.hash; },
             [&](std::size_t a, std::size_t b) { return same_matrix(*all[a]->matrix, *all[b]->matrix); })) {
      std::vector<int> numbers;
      bool one_expert = true;
      for (const std::size_t i : set) {
        numbers.push_back(all[i]->expert);
        one_expert &= set_of[static_cast<std::size_t>(all[i]->expert)] ==
                      set_of[static_cast<std::size_t>(all[set.front()]->expert)];
      }
      if (!one_expert && !all[set.front()]->facts.all_zero())
        findings.add(duplicates(findings, name(part), std::move(numbers)));
    }
  }
}

/// An engine that takes one second scale for both loses what the ratio says of the smaller one's weights.
void judge_gate_and_up(const std::vector<Subject>& subjects, LayerFindings& findings) {
  const auto gates = of_part(subjects, Part::gate), ups = of_part(subjects, Part::up);
  std::vector<int> differing;
  double worst = 1;
  int worst_expert = 0;
  for (std::size_t e = 0; e < gates.size() && e < ups.size(); ++e) {
    const double gate = static_cast<double>(gates[e]->matrix->second_scale),
                 up = static_cast<double>(ups[e]->matrix->second_scale);
    if (gate == up) continue;
    differing.push_back(gates[e]->expert);
    const double ratio = std::max(gate / up, up / gate);
    if (ratio > worst) worst = ratio, worst_expert = gates[e]->expert;
  }
  if (differing.empty()) return;
  const auto count = static_cast<double>(differing.size()), of = static_cast<double>(gates.size());
  const std::string what = fmt::format(
      "second scales of gate and up differ in {} of {} experts, by up to {:.4g} times (expert {})",
      differing.size(), gates.size(), worst, worst_expert);
  // Real files differ by up to 10 times.
  findings.add(
      Finding{.severity = worst > 16 ? Severity::warning : Severity::note,
              .code = "second_scales_differ",
              .layer = findings.layer(),
              .matrix = "gate",
              .experts = std::move(differing),
              .what = what,
              .todo = "Right here; engines that keep one for both need a checkpoint where they are equal",
              .numbers = {{"count", count}, {"of", of}, {"largest_ratio", worst}}});
}

/// Experts with one second scale among them. A recipe that derived their block scales from it leaves the
/// largest block of smaller experts below 448; where all reach 448, block scales were derived from another
/// second scale, and all experts but one are too large or too small.
void judge_merged(const std::vector<Subject>& subjects, LayerFindings& findings) {
  for (const Part part : kRouted) {
    std::map<float, std::vector<const Subject*>> by_scale;
    for (const Subject* subject : of_part(subjects, part))
      if (geometry(subject->matrix->format).second_scale && subject->facts.scales.count > 1 &&
          !subject->facts.all_zero())
        by_scale[subject->matrix->second_scale].push_back(subject);
    for (const auto& [scale, all] : by_scale) {
      std::vector<int> full, low;
      std::set<std::uint64_t> seen;  // equal matrices are another finding
      float lowest = kE4m3Largest;
      for (const Subject* subject : all) {
        const float largest = subject->facts.scales.largest;
        if (largest == kE4m3Largest && seen.insert(subject->facts.hash).second)
          full.push_back(subject->expert);
        if (largest <= kE4m3Largest / 16) low.push_back(subject->expert);
        lowest = std::min(lowest, largest);
      }
      Finding found{.severity = Severity::warning,
                    .layer = findings.layer(),
                    .matrix = std::string(name(part)),
                    .numbers = {{"second_scale", static_cast<double>(scale)}}};
      if (full.size() > 1) {
        found.code = "second_scale_merged";
        found.what = fmt::format(
            "experts {} share the second scale {:.4g} and each has a block scale of 448, as if made for its "
            "own",
            fmt::join(full, ", "), scale);
        found.todo = "If second scales were merged into one, block scales must be multiplied by old / new";
        found.experts = full;
        findings.add(found);
      }
      if (low.empty()) continue;
      found.severity = Severity::note;
      found.code = "block_scales_low";
      found.what = fmt::format("block scales of {} experts reach only {:.4g} of 448 (second scale {:.4g})",
                               low.size(), lowest, scale);
      found.todo = "With a second scale of its own each expert would use all of E4M3's range";
      found.experts = std::move(low);
      findings.add(std::move(found));
    }
  }
}

/// Experts whose weights are far larger or smaller than those of the layer's others.
void judge_unlike_experts(const std::vector<Subject>& subjects, LayerFindings& findings) {
  for (const Part part : kRouted) {
    std::vector<const Subject*> all;
    std::vector<double> magnitudes;
    for (const Subject* subject : of_part(subjects, part)) {
      if (subject->facts.log2_count == 0 || subject->facts.zero_points > 0) continue;
      all.push_back(subject);
      magnitudes.push_back(subject->facts.magnitude(*subject->matrix));
    }
    if (all.size() < 4) continue;
    const Usual usual(magnitudes);
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!usual.unlike(magnitudes[i])) continue;
      findings.add(
          Issue{.severity = Severity::warning,
                .code = "expert_unlike_others",
                .matrix = name(part),
                .expert = all[i]->expert,
                .text = fmt::format("weights are 2^{:.1f} in the mean, of the layer's other experts 2^{:.1f}",
                                    magnitudes[i], usual.middle),
                .todo = "Check its scales: a second scale absent, applied twice or taken from another",
                .at = all[i]->matrix->codes,
                .numbers = {{"log2", magnitudes[i]}, {"others_log2", usual.middle}}});
    }
  }
}

// ---- router, biases, vectors

struct Vector {
  std::string_view name;
  const VectorView& view;
  int expert = -1;
};

void judge_vector(const Vector& vector, LayerFindings& findings) {
  std::int64_t bad = 0;
  for (std::int64_t i = 0; i < vector.view.size; ++i)
    bad += !std::isfinite(format::read_number(vector.view.dtype, vector.view.data + i * vector.view.stride));
  if (bad == 0) return;
  findings.add(Issue{.severity = Severity::error,
                     .code = "vector_not_finite",
                     .matrix = vector.name,
                     .expert = vector.expert,
                     .count = bad,
                     .of = vector.view.size,
                     .text = "numbers are NaN or infinite",
                     .todo = "Fetch the file again; if it is as published, it was saved wrongly",
                     .at = vector.view.data});
}

void judge_router(const WeightMatrix& router, LayerFindings& findings) {
  std::vector<float> row(static_cast<std::size_t>(router.cols));
  std::int64_t bad = 0;
  std::vector<int> zero;
  for (std::int64_t e = 0; e < router.rows; ++e) {
    decode_row(router, e, row.data());
    bad += std::count_if(row.begin(), row.end(), [](float value) { return !std::isfinite(value); });
    if (std::all_of(row.begin(), row.end(), [](float value) { return value == 0; }))
      zero.push_back(static_cast<int>(e));
  }
  Issue found{.matrix = "router", .at = router.codes};
  if (bad > 0) {
    found.severity = Severity::error;
    found.code = "router_not_finite";
    found.count = bad;
    found.of = router.rows * router.cols;
    found.text = "weights are NaN or infinite";
    found.todo = "Fetch the file again; if it is as published, it was saved wrongly";
    findings.add(found);
  }
  if (zero.empty()) return;
  const bool all = static_cast<std::int64_t>(zero.size()) == router.rows;
  found.severity = Severity::warning;
  found.code = all ? "router_all_zero" : "router_row_zero";
  found.count = found.of = 0;
  found.text = all ? "all weights of the router are zero: every token goes to the first experts"
                   : fmt::format("the router's rows of experts {} are zero", fmt::join(zero, ", "));
  found.todo = "Check that the router was filled, and left unquantised, before it was saved";
  findings.add(found);
}

/// One of the projections around latent experts, in any format.
void judge_projection(std::string_view name, const WeightMatrix& matrix, LayerFindings& findings) {
  std::vector<float> row(static_cast<std::size_t>(matrix.cols));
  std::int64_t bad = 0, zero = 0;
  for (std::int64_t r = 0; r < matrix.rows; ++r) {
    decode_row(matrix, r, row.data());
    for (const float value : row) {
      bad += !std::isfinite(value);
      zero += value == 0;
    }
  }
  const std::int64_t all = matrix.rows * matrix.cols;
  Issue found{.severity = Severity::error, .matrix = name, .at = matrix.codes};
  if (bad > 0) {
    found.code = "projection_not_finite";
    found.count = bad;
    found.of = all;
    found.text = "weights are NaN or infinite";
    found.todo = "Fetch the file again; if it is as published, it was saved wrongly";
    findings.add(found);
  } else if (zero == all) {
    found.severity = Severity::warning;
    found.code = "projection_all_zero";
    found.text = "all weights are zero: the routed experts have no effect";
    found.todo = "Check that the projection was filled before it was saved";
    findings.add(found);
  }
}

}  // namespace

void judge_layer(const std::vector<Subject>& subjects, LayerFindings& findings) {
  judge_duplicates(subjects, findings);
  judge_gate_and_up(subjects, findings);
  judge_merged(subjects, findings);
  judge_unlike_experts(subjects, findings);
}

void judge_small_parts(const LayerWeights& weights, LayerFindings& findings) {
  const RouterWeights& router = weights.router;
  if (router.weight) judge_router(*router.weight, findings);
  if (weights.latent) {
    judge_projection("projection before the experts", weights.latent->in, findings);
    judge_projection("projection behind the experts", weights.latent->out, findings);
    judge_vector({"norm of the experts' sum", weights.latent->norm}, findings);
  }
  for (const Vector& vector :
       {Vector{"router bias", router.bias}, Vector{"selection bias", router.selection_bias},
        Vector{"expert scale", router.expert_scale}, Vector{"shared expert's gate", weights.shared_gate}})
    judge_vector(vector, findings);
  for (std::size_t e = 0; e < weights.routed.size(); ++e) {
    const ExpertWeights& expert = weights.routed[e];
    const int number = static_cast<int>(e);
    for (const Vector& vector :
         {Vector{"gate bias", expert.gate_bias, number}, Vector{"up bias", expert.up_bias, number},
          Vector{"down bias", expert.down_bias, number}})
      judge_vector(vector, findings);
  }
}

}  // namespace sluice::linting
