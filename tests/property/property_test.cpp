// SPDX-License-Identifier: Apache-2.0
// Drawn layers on every backend that runs here, held against the definition: the same 120 every time, or for
// as long as one likes:
//
//   test_property --seconds=600 --seed=1
//
// A failure names the backend and the seed of the draw; --seed=THAT --draws=1 --backend=NAME repeats it.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>

#include "testing/draw.h"
#include "testing/usable_backends.h"
#include "tests/property/draw_case.h"

namespace sluice::property {
namespace {

using conformance::Outputs;
using conformance::Problem;

struct Options {
  double seconds = 1e9;
  std::uint64_t seed = 1;
  std::int64_t draws = 120;  // -1: as many as there is time for
  std::string backend = {};
};
Options options;

Problem problem_of(const DrawnCase& made, std::uint64_t seed) {
  Problem problem(made.layer, made.numbers, made.call, seed);
  if (made.dropped == 0) return problem;
  testing::Draw draw(seed + 3);
  std::vector<std::int32_t> ids = problem.call().ids;
  for (std::int32_t& id : ids)
    if (draw.uniform() < made.dropped) id = -1;
  return problem.with_routing(ids, problem.call().weights);
}

void check(const Backend& backend, std::uint64_t seed) {
  const DrawnCase made = draw_case(backend.can, seed);
  SCOPED_TRACE(::testing::Message() << "--backend=" << backend.name << " --seed=" << seed
                                    << " --draws=1: " << made.str());
  const Problem problem = problem_of(made, seed);
  const Outputs flat = problem.run(problem.layer(backend, made.threads), made.tokens_at_once);
  problem.expect_right(flat);
  if (made.layout == Layout::flat) return;
  const bool batched = made.layout == Layout::batched;
  EXPECT_TRUE(is_right(
      backend, problem, flat.experts_out,
      over_ranks(backend, problem, problem.weights(), made.ranks, batched, 1 + static_cast<int>(seed % 50))));
}

TEST(Property, DrawnLayersAreTheDefinition) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(options.seconds);
  std::int64_t draws = 0;
  for (std::uint64_t seed = options.seed; draws != options.draws && Clock::now() < end; ++seed)
    for (const Backend* backend : testing::usable_backends()) {
      if (!options.backend.empty() && backend->name != options.backend) continue;
      ASSERT_NO_THROW(check(*backend, seed)) << backend->name << ", seed " << seed;
      ++draws;
      ASSERT_FALSE(HasFailure()) << "after " << draws << " draws";
    }
  ASSERT_GT(draws, 0);
  std::cout << draws << " layers drawn, from seed " << options.seed << "\n";
}

bool take(const std::string& argument, const std::string& name, std::string& value) {
  if (argument.rfind(name, 0) != 0) return false;
  value = argument.substr(name.size());
  return true;
}

}  // namespace
}  // namespace sluice::property

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  auto& options = sluice::property::options;
  for (int i = 1; i < argc; ++i) {
    std::string value;
    if (sluice::property::take(argv[i], "--seconds=", value))
      options.seconds = std::stod(value), options.draws = -1;
    else if (sluice::property::take(argv[i], "--seed=", value))
      options.seed = std::stoull(value);
    else if (sluice::property::take(argv[i], "--draws=", value))
      options.draws = std::stoll(value);
    else if (!sluice::property::take(argv[i], "--backend=", options.backend)) {
      std::cerr << "unknown argument " << argv[i] << "\n";
      return 2;
    }
  }
  return RUN_ALL_TESTS();
}
