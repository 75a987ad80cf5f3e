// SPDX-License-Identifier: Apache-2.0
#include "testing/closeness.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "sluice/plan.h"

namespace sluice::testing {
namespace {

/// As the result is stored: a double beyond float32 is an infinity.
bool same_special(float got, double want) {
  const float stored = static_cast<float>(want);
  if (std::isnan(got) || std::isnan(stored)) return std::isnan(got) && std::isnan(stored);
  return got == stored;
}

bool is_special(float got, double want) {
  return !std::isfinite(got) || !std::isfinite(static_cast<float>(want));
}

/// What is summed up over a token's elements.
struct Totals {
  double error2 = 0, want2 = 0, allowed2 = 0;
};

double ratio(double error2, double of2) {
  if (error2 == 0) return 0;
  return of2 == 0 ? std::numeric_limits<double>::infinity() : std::sqrt(error2 / of2);
}

class Judge {
 public:
  explicit Judge(const Comparison& comparison) : all_(comparison) {}

  Closeness judge() {
    const std::int64_t tokens = std::ssize(all_.want) / all_.width;
    for (std::int64_t token = 0; token < tokens; ++token) {
      Totals row;
      for (std::int64_t element = 0; element < all_.width; ++element) judge_element(token, element, row);
      // Of the worst token: pooled, fifteen good ones would cover up for a bad one.
      result_.rel_l2_max = std::max(result_.rel_l2_max, ratio(row.error2, row.want2));
      result_.rms_units = std::max(result_.rms_units, ratio(row.error2, row.allowed2));
    }
    return result_;
  }

 private:
  void judge_element(std::int64_t token, std::int64_t element, Totals& row) {
    const std::size_t at = static_cast<std::size_t>(token * all_.width + element);
    const float got = all_.got[at];
    const double want = all_.want[at];
    if (is_special(got, want)) {
      if (same_special(got, want)) return;
      if (result_.misplaced == 0) note(token, element);
      ++result_.misplaced;
      return;
    }
    // The smallest normal number: below it float32 has no relative precision.
    const double known = std::isfinite(all_.magnitude[at]) ? all_.magnitude[at] : std::abs(want);
    const double magnitude = std::max({known, std::abs(want), double{std::numeric_limits<float>::min()}});
    const double error = std::abs(got - want), units = error / (all_.unit * magnitude);
    if (units > result_.worst_element_units || result_.token < 0) {
      result_.worst_element_units = std::max(units, result_.worst_element_units);
      if (result_.misplaced == 0) note(token, element);
    }
    const double operands = all_.unit * want, sums = kFloat32Unit * magnitude;
    row.error2 += error * error;
    row.want2 += want * want;
    row.allowed2 += operands * operands + sums * sums;
  }

  void note(std::int64_t token, std::int64_t element) {
    const std::size_t at = static_cast<std::size_t>(token * all_.width + element);
    result_.token = token;
    result_.element = element;
    result_.got = all_.got[at];
    result_.want = all_.want[at];
  }

  const Comparison& all_;
  Closeness result_;
};

}  // namespace

std::string Closeness::str() const {
  const std::string place =
      fmt::format("token {}, element {} (got {:.9g}, want {:.9g})", token, element, got, want);
  if (misplaced > 0)
    return fmt::format("{} elements are NaN or infinite at one side only, first at {}", misplaced, place);
  return fmt::format("worst {:.3g} units at {}, rms {:.3g} units, rel L2 {:.2g}", worst_element_units, place,
                     rms_units, rel_l2_max);
}

Closeness closeness(const Comparison& comparison) {
  const std::size_t size = comparison.want.size();
  const bool fits = comparison.width > 0 && size % static_cast<std::size_t>(comparison.width) == 0 &&
                    comparison.got.size() == size && comparison.magnitude.size() == size;
  require(fits, ErrorKind::invalid_argument, [&] {
    return ErrorInfo{.code = "bad_comparison",
                     .what = "the two sides of a comparison differ in size",
                     .why = fmt::format("got {}, want {}, magnitude {}, width {}", comparison.got.size(),
                                        size, comparison.magnitude.size(), comparison.width)};
  });
  return Judge(comparison).judge();
}

double unit_of(std::string_view backend) {
  for (const BackendInfo& info : backends_info())
    if (info.name == backend && (info.accuracy == "float32" || info.accuracy == "int8_activations"))
      return kFloat32Unit;
    else if (info.name == backend && info.accuracy == "bf16_intermediate")
      return kBf16Unit;
  throw Error(ErrorKind::invalid_argument,
              {.code = "no_such_backend",
               .what = fmt::format("no backend whose accuracy has a unit is called {}", backend)});
}

}  // namespace sluice::testing
