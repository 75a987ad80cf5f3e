// SPDX-License-Identifier: Apache-2.0
// From facts to findings. What is judged here is one layer at a time; what a limit is, and why, stands beside
// it.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lint/facts.h"
#include "sluice/lint.h"

namespace sluice::linting {

enum class Part : std::uint8_t { gate, up, down, shared_gate, shared_up, shared_down };
std::string_view name(Part part);
inline constexpr Part kParts[] = {Part::gate,        Part::up,        Part::down,
                                  Part::shared_gate, Part::shared_up, Part::shared_down};

/// A matrix of a layer and what was seen of it.
struct Subject {
  Part part = Part::up;
  int expert = -1;  // -1: of the shared expert
  const WeightMatrix* matrix = nullptr;
  Facts facts = {};
};

/// Those of one kind, by expert.
std::vector<const Subject*> of_part(const std::vector<Subject>& subjects, Part part);

/// One thing found about one matrix.
struct Issue {
  Severity severity = Severity::note;
  std::string_view code = {};
  std::string_view matrix = {};
  int expert = -1;
  std::int64_t count = 0, of = 0;  // what the text starts with; `of` 0: it does not
  std::string text = {};
  std::string todo = {};
  const std::byte* at = nullptr;  // a byte of the tensor, for its name
  std::vector<std::pair<std::string, double>> numbers = {};
};

/// The findings of one layer. Issues of one code about one kind of matrix become one finding, which has the
/// text of the first, the sums of the counts, and all experts.
class LayerFindings {
 public:
  using Place = std::function<TensorPlace(const std::byte*)>;
  LayerFindings(int layer, Place place) : layer_(layer), place_(std::move(place)) {}

  void add(Issue issue);
  void add(Finding finding) { whole_.push_back(std::move(finding)); }
  /// The worst first.
  std::vector<Finding> take();
  int layer() const { return layer_; }

 private:
  struct Folded {
    Issue first;
    std::vector<int> experts;
  };
  int layer_;
  Place place_;
  std::vector<Folded> folded_ = {};
  std::vector<Finding> whole_ = {};
};

/// What the model says about itself and a finding may need.
struct Setting {
  std::string quantisation;
};

/// What can be said of a matrix alone.
void judge_matrix(const Subject& subject, const Setting& setting, LayerFindings& findings);
/// What can be said of the matrices of a layer together: equal ones, and ones unlike the others.
void judge_layer(const std::vector<Subject>& subjects, LayerFindings& findings);
/// Router, biases and other vectors.
void judge_small_parts(const LayerWeights& weights, LayerFindings& findings);

std::vector<MatrixRange> ranges_of(int layer, const std::vector<Subject>& subjects);
/// Layers whose ranges are unlike those of the other layers.
std::vector<Finding> judge_ranges(const std::vector<MatrixRange>& ranges);

}  // namespace sluice::linting
