// SPDX-License-Identifier: Apache-2.0
// As the compiler makes them.
#include "core/bits.h"
#include "testing/roof_kernels.h"

namespace sluice::testing {
namespace {

constexpr int kLanes = 64;

std::uint64_t read_plain(const std::byte* data, std::size_t bytes) {
  std::uint64_t sums[8] = {};
  for (std::size_t i = 0; i < bytes; i += sizeof(sums))
    for (std::size_t s = 0; s < 8; ++s) sums[s] ^= load<std::uint64_t>(data + i + 8 * s);
  std::uint64_t all = 0;
  for (const std::uint64_t sum : sums) all ^= sum;
  return all;
}

float multiply_add_plain(int rounds) {
  float chains[kLanes];
  for (int c = 0; c < kLanes; ++c) chains[c] = static_cast<float>(c);
  for (int r = 0; r < rounds; ++r)
    for (float& chain : chains) chain = chain * 0.999f + 0.001f;
  float sum = 0;
  for (const float chain : chains) sum += chain;
  return sum;
}

}  // namespace

RoofKernels roof_kernels(const Instructions&) {
  return {read_plain, {{.name = "f32_fma", .run = multiply_add_plain, .lanes = kLanes, .exact = true}}};
}

}  // namespace sluice::testing
