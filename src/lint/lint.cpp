// SPDX-License-Identifier: Apache-2.0
#include "sluice/lint.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <mutex>

#include "lint/findings.h"

namespace sluice {
namespace {

using namespace linting;

void add_expert(std::vector<Subject>& subjects, const ExpertWeights& expert, int number) {
  const bool shared = number < 0;
  if (expert.gate) subjects.push_back({shared ? Part::shared_gate : Part::gate, number, &*expert.gate});
  subjects.push_back({shared ? Part::shared_up : Part::up, number, &expert.up});
  subjects.push_back({shared ? Part::shared_down : Part::down, number, &expert.down});
}

/// In the order of memory, which within a file is that of the file.
std::vector<Subject> subjects_of(const LayerWeights& weights) {
  std::vector<Subject> subjects;
  for (std::size_t e = 0; e < weights.routed.size(); ++e)
    add_expert(subjects, weights.routed[e], static_cast<int>(e));
  for (const ExpertWeights& shared : weights.shared) add_expert(subjects, shared, -1);
  std::sort(subjects.begin(), subjects.end(), [](const Subject& a, const Subject& b) {
    return std::less<>()(a.matrix->codes, b.matrix->codes);
  });
  return subjects;
}

/// Looks at all matrices of a layer, a matrix a task.
class Reading {
 public:
  Reading(Executor& executor, const Progress& progress, std::int64_t total)
      : executor_(executor), progress_(progress), total_(total) {}

  void read(std::vector<Subject>& subjects, std::int64_t layer_bytes) {
    const auto tasks = static_cast<std::int64_t>(subjects.size());
    const std::int64_t before = done_;
    std::int64_t finished = 0;
    parallel_for(executor_, static_cast<int>(tasks), [&](int task, int) {
      Subject& subject = subjects[static_cast<std::size_t>(task)];
      std::exception_ptr thrown;
      try {
        subject.facts = look_at(*subject.matrix);
      } catch (...) {
        thrown = std::current_exception();
      }
      const std::lock_guard lock(mutex_);
      if (thrown) thrown_ = thrown;
      ++finished;
      done_ = before + layer_bytes / tasks * finished;
      if (progress_) progress_(done_, total_);
    });
    done_ = before + layer_bytes;
    if (thrown_) std::rethrow_exception(thrown_);
  }

 private:
  Executor& executor_;
  const Progress& progress_;
  std::mutex mutex_ = {};
  std::exception_ptr thrown_ = {};
  std::int64_t done_ = 0, total_ = 0;
};

Finding refused(int layer, const ErrorInfo& info) {
  return {.severity = Severity::error,
          .code = info.code,
          .layer = layer,
          .what = info.what + (info.why.empty() ? "" : ": " + info.why),
          .todo = info.todo,
          .file = info.file,
          .tensor = info.tensor};
}

struct Linted {
  const Checkpoint& model;
  Reading reading;
  LintReport report = {};

  void layer(int number) {
    LayerFindings findings(number, [&](const std::byte* at) { return model.place(at); });
    std::vector<ErrorInfo> faults;
    LayerWeights weights;
    try {
      weights = model.unchecked_weights(number, faults);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::io) throw;
      faults.push_back(error.info());
    }
    for (const ErrorInfo& info : faults) findings.add(refused(number, info));
    std::vector<Subject> subjects = subjects_of(weights);
    reading.read(subjects, model.layer_bytes(number));
    for (const Part part : kParts)
      for (const Subject* subject : of_part(subjects, part))
        judge_matrix(*subject, {model.info().quantisation}, findings);
    judge_layer(subjects, findings);
    judge_small_parts(weights, findings);
    for (MatrixRange& range : ranges_of(number, subjects)) report.ranges.push_back(std::move(range));
    for (Finding& finding : findings.take()) report.findings.push_back(std::move(finding));
    report.bytes += model.layer_bytes(number);
  }
};

}  // namespace

LintReport lint(const Checkpoint& model, Executor& executor, const Progress& progress) {
  std::int64_t total = 0;
  for (const int layer : model.info().moe_layers) total += model.layer_bytes(layer);
  Linted linted{model, Reading(executor, progress, total)};
  for (const int layer : model.info().moe_layers) linted.layer(layer);
  LintReport& report = linted.report;
  for (Finding& finding : judge_ranges(report.ranges)) report.findings.push_back(std::move(finding));
  std::stable_sort(report.findings.begin(), report.findings.end(), [](const Finding& a, const Finding& b) {
    return a.layer != b.layer ? a.layer < b.layer : a.severity > b.severity;
  });
  return std::move(report);
}

}  // namespace sluice
