// SPDX-License-Identifier: Apache-2.0
#include "testing/reference_latent.h"

#include <cmath>

#include "format/formats.h"
#include "format/scales.h"

namespace sluice::testing {
namespace {

/// What a product adds up, and what its operands may be off by.
struct Operand {
  std::span<const double> values;
  std::span<const double> reach;  // each independent of the others, unless `together`; empty: exact
  bool together = false;
  double common = 0;  // a part of its own value by which every one is off the same way
};

void multiply(const WeightMatrix& matrix, const Operand& x, Measured& result) {
  std::vector<double> row(static_cast<std::size_t>(matrix.cols));
  for (std::int64_t r = 0; r < matrix.rows; ++r) {
    decode_row(matrix, r, row.data());
    double sum = 0, products = 0, spread = 0, spread2 = 0;
    for (std::size_t k = 0; k < row.size(); ++k) {
      sum += row[k] * x.values[k];
      products += std::abs(row[k] * x.values[k]);
      if (x.reach.empty()) continue;
      spread += std::abs(row[k]) * x.reach[k];
      spread2 += row[k] * x.reach[k] * row[k] * x.reach[k];
    }
    if (!x.together) spread = std::sqrt(spread2);
    result.values.push_back(sum);
    result.magnitude.push_back(products + spread + x.common * std::abs(sum));
  }
}

/// A row through the norm. Every element moves with the one factor, which moves with every element.
struct Normed {
  std::vector<double> values, reach;
  double common = 0;

  Normed(const Operand& operand, const VectorView& norm, double epsilon) {
    const std::span<const double> sums = operand.values, magnitude = operand.reach;
    const double width = static_cast<double>(sums.size());
    double squares = 0, moved = 0, moved2 = 0;
    for (std::size_t i = 0; i < sums.size(); ++i) {
      moved += std::abs(sums[i]) * magnitude[i];
      squares += sums[i] * sums[i];
      moved2 += sums[i] * magnitude[i] * sums[i] * magnitude[i];
    }
    const double factor = 1 / std::sqrt(squares / width + epsilon);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const double weight =
          factor * format::read_number(norm.dtype, norm.data + static_cast<std::ptrdiff_t>(i) * norm.stride);
      values.push_back(weight * sums[i]);
      reach.push_back(std::abs(weight) * (magnitude[i] + std::abs(sums[i])));
    }
    common = 1 + factor * factor * (operand.together ? moved : std::sqrt(moved2)) / width;
  }
};

}  // namespace

Measured to_latent(const LatentWeights& weights, std::span<const double> x) {
  const auto width = static_cast<std::size_t>(weights.in.cols);
  Measured result;
  for (std::size_t at = 0; at < x.size(); at += width)
    multiply(weights.in, {.values = x.subspan(at, width), .reach = {}}, result);
  return result;
}

Measured from_latent(const LatentSpec& spec, const LatentWeights& weights, const Measured& sums) {
  const auto width = static_cast<std::size_t>(weights.out.cols);
  Measured result;
  for (std::size_t at = 0; at < sums.values.size(); at += width) {
    const Operand row{.values = std::span(sums.values).subspan(at, width),
                      .reach = std::span(sums.magnitude).subspan(at, width),
                      .together = sums.together};
    if (!spec.norm_epsilon) {
      multiply(weights.out, row, result);
      continue;
    }
    const Normed normed(row, weights.norm, *spec.norm_epsilon);
    multiply(
        weights.out,
        {.values = normed.values, .reach = normed.reach, .together = sums.together, .common = normed.common},
        result);
  }
  return result;
}

}  // namespace sluice::testing
