// SPDX-License-Identifier: Apache-2.0
// The only file of the command that includes the JSON library.
#include "json.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "testing/bench_json.h"

namespace sluice::tools {

namespace {

using Json = nlohmann::ordered_json;

/// Text of files may be no UTF-8; a document always is.
std::string document(const char* schema, const Json& members) {
  Json json{{"schema", schema}};
  json.update(members);
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

/// JSON has no infinity and no NaN.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

/// A float32 with the digits that a person wrote: 1.702, not 1.7020000219345093.
Json number(float value) {
  if (!std::isfinite(value)) return nullptr;
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", static_cast<double>(value));
  for (int digits = 1; digits < 9; ++digits) {
    char shorter[32];
    std::snprintf(shorter, sizeof shorter, "%.*g", digits, static_cast<double>(value));
    if (std::strtof(shorter, nullptr) == value) return std::strtod(shorter, nullptr);
  }
  return std::strtod(text, nullptr);
}

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

template <class Items, class Make>
Json array(const Items& items, Make make) {
  Json list = Json::array();
  for (const auto& item : items) list.push_back(make(item));
  return list;
}

// ---- inspect
// -----------------------------------------------------------------------------------------------------

Json router_json(const RouterSpec& router) {
  return {{"score", router.score.str()},
          {"experts", router.experts},
          {"top_k", router.top_k},
          {"groups", router.groups},
          {"groups_kept", router.groups_kept},
          {"group_score", router.group_score == GroupScore::best ? "best" : "two_best"},
          {"bias", router.bias},
          {"selection_bias", router.selection_bias},
          {"expert_scale", router.expert_scale},
          {"renormalise", router.renormalise},
          {"scale", number(router.scale)},
          {"by_token_id", router.by_token_id}};
}

Json activation_json(const ExpertsSpec& spec) {
  return {{"name", spec.activation.str()},
          {"limit", number(spec.params.limit)},
          {"slope", number(spec.params.slope)},
          {"shift", number(spec.params.shift)},
          {"situ_beta", number(spec.params.situ_beta)},
          {"situ_linear_beta", number(spec.params.situ_linear_beta)}};
}

Json formats_json(const MatrixFormats& formats) {
  return {{"gate", formats.gate ? Json(storage_text(*formats.gate, formats.gate_grouping)) : Json(nullptr)},
          {"up", storage_text(formats.up, formats.up_grouping)},
          {"down", storage_text(formats.down, formats.down_grouping)}};
}

Json other_json(const OtherFormats& other) {
  Json json = formats_json(other.formats);
  json["expert"] = other.expert;
  return json;
}

Json formats_json(const LayerSpec& spec) {
  Json json = formats_json(spec.routed.formats);
  json["shared"] = spec.shared ? Json(storage_text(spec.shared->experts.formats)) : Json(nullptr);
  json["others"] = array(spec.routed.others, other_json);
  return json;
}

Json shared_json(const std::optional<SharedSpec>& shared) {
  if (!shared) return nullptr;
  return {{"intermediate", shared->experts.intermediate},
          {"activation", activation_json(shared->experts)},
          {"sigmoid_gate", shared->sigmoid_gate}};
}

Json latent_json(const LayerSpec& spec) {
  if (!spec.latent) return nullptr;
  const std::optional<float> epsilon = spec.latent->norm_epsilon;
  return {{"width", spec.routed.hidden}, {"norm_epsilon", epsilon ? number(*epsilon) : Json(nullptr)}};
}

Json layer_json(const InspectedLayer& layer) {
  const ExpertsSpec& routed = layer.spec.routed;
  return {{"layer", layer.layer},
          {"hidden", layer.spec.hidden()},
          {"latent", latent_json(layer.spec)},
          {"intermediate", routed.intermediate},
          {"experts", routed.experts},
          {"top_k", routed.top_k},
          {"router", router_json(layer.spec.router)},
          {"activation", activation_json(routed)},
          {"formats", formats_json(layer.spec)},
          {"gate_up_bias", routed.gate_up_bias},
          {"down_bias", routed.down_bias},
          {"weight_on_input", routed.weight_on_input},
          {"shared", shared_json(layer.spec.shared)},
          {"bits_a_weight", number(layer.bits_a_weight)},
          {"bytes", layer.bytes}};
}

// ---- lint
// --------------------------------------------------------------------------------------------------------

Json finding_json(const Finding& finding) {
  Json numbers = Json::object();
  for (const auto& [name, value] : finding.numbers) numbers[name] = number(value);
  return {{"severity", name(finding.severity)},
          {"code", finding.code},
          {"layer", finding.layer},
          {"matrix", text_or_null(finding.matrix)},
          {"experts", finding.experts},
          {"what", finding.what},
          {"do", finding.todo},
          {"file", text_or_null(finding.file)},
          {"tensor", text_or_null(finding.tensor)},
          {"numbers", numbers}};
}

Json scales_json(const MatrixRange& range) {
  if (range.scales == 0) return nullptr;
  return {{"count", range.scales},
          {"type", range.scale_type},
          {"smallest", number(range.smallest_scale)},
          {"largest", number(range.largest_scale)},
          {"bottom_share", number(range.bottom_share)},
          {"top_share", number(range.top_scale_share)},
          {"smallest_second", number(range.smallest_second)},
          {"largest_second", number(range.largest_second)}};
}

Json range_json(const MatrixRange& range) {
  return {{"layer", range.layer},
          {"matrix", range.matrix},
          {"storage", range.storage},
          {"matrices", range.matrices},
          {"weights", range.weights},
          {"zero_share", number(range.zero_share)},
          {"top_share", number(range.top_share)},
          {"magnitude_log2", number(range.magnitude)},
          {"scales", scales_json(range)}};
}

// ---- explain
// -----------------------------------------------------------------------------------------------------

Json miss_json(const Miss& miss) {
  return {{"trait", miss.trait}, {"wanted", miss.wanted}, {"offered", miss.offered}, {"why", miss.why}};
}

Json kernel_json(const KernelCost& cost) {
  return {{"name", cost.kernel}, {"tokens", cost.tokens}, {"us", number(cost.us)}, {"basis", cost.basis}};
}

Json verdict_json(const Verdict& verdict) {
  return {{"backend", verdict.backend},
          {"fits", verdict.fits},
          {"misses", array(verdict.misses, miss_json)},
          {"kernels", array(verdict.kernels, kernel_json)}};
}

Json device_json(const DeviceFacts& device) {
  Json instructions = Json::array();
  device.has.each([&](Instruction instruction) { instructions.push_back(instruction.str()); });
  return {{"kind", device.kind.str()},
          {"name", device.name},
          {"instructions", instructions},
          {"cores", device.cores},
          {"read_gbps", number(device.read_gbps)},
          {"peak_gflops", number(device.peak_gflops)},
          {"memory_bytes", device.memory_bytes}};
}

Json explained_json(const ExplainedLayer& layer) {
  return {{"layer", layer.layer},
          {"summary", summary(layer.plan.request)},
          {"chosen", text_or_null(layer.plan.chosen)},
          {"verdicts", array(layer.plan.verdicts, verdict_json)}};
}

// ---- check
// -------------------------------------------------------------------------------------------------------

Json case_json(const testing::CheckCase& c) {
  return {{"backend", c.backend},
          {"layer", c.layer},
          {"passed", c.failures.empty()},
          {"rel_l2_max", number(c.rel_l2_max)},
          {"rel_l2_limit", number(c.rel_l2_limit)},
          {"worst_element_units", number(c.worst_element_units)},
          {"rms_units", number(c.rms_units)},
          {"ids_equal", c.ids_equal},
          {"weights_max_error", number(c.weights_max_error)},
          {"gate_over_limit", number(c.clamp.gate_over_limit)},
          {"up_over_limit", number(c.clamp.up_over_limit)},
          {"clamp_effect", number(c.clamp.effect)},
          {"failures", c.failures}};
}

Json not_run_json(const testing::NotRun& missing) {
  return {{"backend", missing.backend}, {"layer", missing.layer}, {"why", missing.why}};
}

}  // namespace

std::string to_json(const InspectResult& result) {
  const ModelInfo& model = result.model;
  return document("sluice.inspect/1", {{"directory", model.directory},
                                       {"family", model.family},
                                       {"architecture", model.architecture},
                                       {"quantisation", model.quantisation},
                                       {"layers_in_model", model.layers},
                                       {"moe_layers", model.moe_layers},
                                       {"files", model.files},
                                       {"file_bytes", model.file_bytes},
                                       {"tensors", model.tensors},
                                       {"notes", model.notes},
                                       {"layers", array(result.layers, layer_json)}});
}

std::string to_json(const LintResult& result) {
  const LintReport& report = result.report;
  return document("sluice.lint/1", {{"directory", result.model.directory},
                                    {"family", result.model.family},
                                    {"quantisation", result.model.quantisation},
                                    {"bytes", report.bytes},
                                    {"errors", report.count(Severity::error)},
                                    {"warnings", report.count(Severity::warning)},
                                    {"notes", report.count(Severity::note)},
                                    {"findings", array(report.findings, finding_json)},
                                    {"ranges", array(report.ranges, range_json)}});
}

std::string to_json(const ExplainResult& result) {
  return document("sluice.explain/1", {{"model", result.model},
                                       {"device", device_json(result.device)},
                                       {"tokens", result.tokens},
                                       {"layers", array(result.layers, explained_json)}});
}

std::string to_json(const RunResult& result) {
  return document("sluice.run/1",
                  {{"model", result.model},
                   {"layer", result.layer},
                   {"backend", result.backend},
                   {"tokens", result.tokens},
                   {"routing", result.routing},
                   {"output", result.output},
                   {"cache",
                    {{"loaded", result.cache.loaded},
                     {"written", result.cache.written},
                     {"repaired", result.cache.repaired},
                     {"notes", result.cache.notes}}},
                   {"tensors", array(result.tensors, [](const WrittenTensor& tensor) -> Json {
                      return {{"name", tensor.name}, {"dtype", tensor.dtype}, {"shape", tensor.shape}};
                    })}});
}

std::string to_json(const testing::CheckReport& report) {
  return document("sluice.check/1", {{"passed", report.passed()},
                                     {"compared_with", report.compared_with},
                                     {"cases", array(report.cases, case_json)},
                                     {"not_run", array(report.not_run, not_run_json)}});
}

std::string to_json(const testing::BenchResult& result) { return testing::bench_json(result); }

std::string to_json(const SampleResult& result) {
  return document("sluice.sample/1", {{"family", result.family},
                                      {"directory", result.directory},
                                      {"seed", result.seed},
                                      {"layers", result.layers},
                                      {"files", result.files},
                                      {"bytes", result.bytes}});
}

std::string to_json(const ErrorInfo& error) {
  return document("sluice.error/1", {{"error",
                                      {{"code", error.code},
                                       {"what", error.what},
                                       {"file", error.file},
                                       {"tensor", error.tensor},
                                       {"why", error.why},
                                       {"do", error.todo}}}});
}

}  // namespace sluice::tools
