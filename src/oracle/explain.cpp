// SPDX-License-Identifier: Apache-2.0
// Plans for people: the table, the summary line, and the exception that carries them.
#include <fmt/format.h>

#include <algorithm>

#include "oracle/oracle.h"

namespace sluice {
namespace {

std::string shared_text(const LayerSpec& layer) {
  if (!layer.shared) return {};
  const ExpertsSpec& shared = layer.shared->experts;
  std::string text = fmt::format(", shared {} {}", shared.intermediate, storage_text(shared.formats));
  if (shared.activation != layer.routed.activation) text += fmt::format(" {}", shared.activation.str());
  return text;
}

/// "9.10 us", "138 us", "1.64 ms", "2.00 s": three digits.
std::string duration(double us) {
  double value = us;
  std::string_view unit = "us";
  if (us >= 1e6) {
    value = us / 1e6;
    unit = "s";
  } else if (us >= 1e3) {
    value = us / 1e3;
    unit = "ms";
  }
  const int decimals = value < 10 ? 2 : value < 100 ? 1 : 0;
  return fmt::format("{:.{}f} {}", value, decimals, unit);
}

std::string costs_text(const Verdict& verdict) {
  std::vector<std::string> parts, bases;
  for (const KernelCost& cost : verdict.kernels) {
    parts.push_back(fmt::format("{}: {} {}", cost.tokens, cost.kernel, duration(cost.us)));
    if (std::ranges::find(bases, cost.basis) == bases.end()) bases.push_back(cost.basis);
  }
  return fmt::format("{} ({})", fmt::join(parts, ", "), fmt::join(bases, ", "));
}

/// What the backend rounds beside; nothing of one that does not.
std::string rounding_text(const Verdict& verdict) {
  const Backend* backend = find_backend(verdict.backend, backends());
  if (backend == nullptr || backend->can.accuracy == Accuracies::of<accuracy::Float32>()) return {};
  return fmt::format("; rounds more than float32: {}", backend->can.accuracy.str());
}

std::string misses_text(const Verdict& verdict) {
  std::vector<std::string> parts;
  for (const Miss& miss : verdict.misses) parts.push_back(miss.trait + ": " + miss.why);
  return fmt::format("{}", fmt::join(parts, "; "));
}

/// What somebody who wants to write a backend for this would declare.
std::string wanted_text(const Request& request) {
  NameSet<struct FormatTag> formats;
  NameSet<struct ActivationTag> activations;
  const auto add = [&](const ExpertsSpec& spec) {
    for (const FormatGroup& group : format_groups(spec)) {
      const MatrixFormats& its = group.spec.formats;
      formats.add(its.gate.value_or(its.up)).add(its.up).add(its.down);
    }
    activations.add(spec.activation);
  };
  add(request.layer.routed);
  if (request.layer.shared) add(request.layer.shared->experts);
  return fmt::format(
      "  a backend for it declares device {}, instructions out of {{{}}}, weights {}, activation {}, "
      "features {}\n",
      request.device.kind.str(), request.device.has.empty() ? "" : request.device.has.str(), formats.str(),
      activations.str(), needs(request.layer).str());
}

std::string what_to_do(const Plan& plan) {
  const Request& request = plan.request;
  if (!request.by_name.empty())
    return "Leave out the name to have the best backend chosen, or name one that the explanation without it "
           "lists";
  const bool other_device = std::ranges::all_of(plan.verdicts, [](const Verdict& verdict) {
    return std::ranges::any_of(verdict.misses, [](const Miss& miss) { return miss.trait == "device"; });
  });
  if (other_device)
    return fmt::format("This build has no backend for {}; plan for a device that one runs on",
                       request.device.kind.str());
  return "The first refusal is the nearest: what it lists is what stands in the way. The reference runs "
         "everything, "
         "slowly, when asked for by name";
}

/// The explanation: its first line is what is wrong, the rest is why.
ErrorInfo no_backend(const Plan& plan) {
  std::string text = sluice::explain(plan);
  while (text.ends_with('\n')) text.pop_back();
  const std::size_t line = std::min(text.find('\n'), text.size());
  return {.code = "no_backend",
          .what = text.substr(0, line),
          .why = text.substr(std::min(line + 1, text.size())),
          .todo = what_to_do(plan)};
}

}  // namespace

std::string summary(const Request& request) {
  const ExpertsSpec& spec = request.layer.routed;
  const std::string local =
      spec.local_experts == spec.experts ? std::string() : fmt::format(" ({} here)", spec.local_experts);
  const std::string latent =
      request.layer.latent ? fmt::format(" latent of {}", request.layer.hidden()) : std::string();
  return fmt::format("{} experts{}, top {}, {}x{}{}, {}, {}{}, needs {}; {}", spec.experts, local, spec.top_k,
                     spec.hidden, spec.intermediate, latent, storage_text(spec), spec.activation.str(),
                     shared_text(request.layer), needs(request.layer).str(), request.device.name);
}

std::string explain(const Plan& plan) {
  std::string text;
  const std::string& by_name = plan.request.by_name;
  if (plan.chosen.empty())
    text += by_name.empty() ? "no backend runs this layer\n" : by_name + " does not run this layer\n";
  text += summary(plan.request) + "\n";

  std::size_t width = 0;
  for (const Verdict& verdict : plan.verdicts) width = std::max(width, verdict.backend.size());
  for (const Verdict& verdict : plan.verdicts) {
    const bool chosen = verdict.backend == plan.chosen;
    text += fmt::format("  {:<4} {:<{}}  {}\n",
                        chosen         ? "use"
                        : verdict.fits ? "fits"
                                       : "no",
                        verdict.backend, width,
                        verdict.fits ? costs_text(verdict) + rounding_text(verdict) : misses_text(verdict));
  }
  if (plan.chosen.empty() && by_name.empty()) text += wanted_text(plan.request);
  return text;
}

Unsupported::Unsupported(Plan plan)
    : Error(ErrorKind::unsupported, no_backend(plan)), plan_(std::move(plan)) {}

}  // namespace sluice
