// SPDX-License-Identifier: Apache-2.0
// Calls around the limits of the one launch for few tokens (src/experts/cuda/mma/small.h), on every backend
// of a card: most slots, most experts a token, nobody's ids, few local experts, graphs, and two streams of
// one layer. Each has the bits of Layer::run, and what the definition says within roundings.
#include <array>
#include <thread>

#include "experts/cuda/mma/small.h"
#include "testing/draw.h"
#include "tests/conformance/judge.h"
#include "tests/cuda/device_call.h"

namespace sluice {
namespace {

using conformance::Case;
using conformance::Problem;
using on_card::CardCall;
using on_card::Graph;
using on_card::Results;
using on_card::run_on_host;
using testing::Numbers;

/// A layer of these tests; its routed experts alone, in MXFP4.
struct Experts {
  int all, top_k;
  int here = 0;  // 0: all; else the first
};

struct Widths {
  int hidden = 160, intermediate = 64;
};

Case case_of(const Experts& experts, Format format = Formats::of<format::Mxfp4>(), Widths widths = {}) {
  Case made = conformance::make_case(format, format, Activations::of<activation::Silu>(),
                                     Features::set<feature::GateUpBias, feature::DownBias, feature::Limit>(),
                                     {.hidden = widths.hidden, .intermediate = widths.intermediate});
  ExpertsSpec& routed = made.spec.routed;
  routed.experts = routed.local_experts = made.spec.router.experts = experts.all;
  routed.top_k = made.spec.router.top_k = experts.top_k;
  if (experts.here > 0) {
    routed.local_experts = experts.here;
    made.expert_map.assign(static_cast<std::size_t>(experts.all), -1);
    for (int e = 0; e < experts.here; ++e)
      made.expert_map[static_cast<std::size_t>(e * experts.all / experts.here)] = e;
  }
  return made;
}

bool takes_one_launch(const ExpertsSpec& spec, int tokens) {
  return cuda::is_small(cuda::expert_layout(spec),
                        {.tokens = tokens, .top_k = spec.top_k, .local_experts = spec.local_experts});
}

LayerCall host_call(const Problem& problem) {
  return {.hidden = problem.call().hidden, .routing = problem.call().routing(problem.spec().routed.top_k)};
}

class FewTokensTest : public on_card::BackendTest {
 protected:
  /// On the card, from the host, and by the definition.
  Results expect_right(const Problem& problem) const {
    SCOPED_TRACE(::testing::Message()
                 << problem.call().hidden.rows << " tokens, top " << problem.spec().routed.top_k);
    const Layer layer = problem.layer(backend());
    const Results got = CardCall(layer, host_call(problem)).run();
    expect_same(got, run_on_host(layer, host_call(problem)), "as from the host");
    problem.expect_right({got.experts_out, got.block_out, testing::unit_of(layer.plan().chosen)});
    return got;
  }
};

TEST_P(FewTokensTest, TheMostTokensOfOneLaunchAndOneMore) {
  const Case made = case_of({.all = 128, .top_k = 4});
  EXPECT_TRUE(takes_one_launch(made.spec.routed, 64));
  EXPECT_FALSE(takes_one_launch(made.spec.routed, 65));
  for (const DType dtype : {DType::bf16, DType::f32})
    for (const int tokens : {64, 65}) {
      const Problem problem(made, Numbers::noisy, {.tokens = tokens, .dtype = dtype});
      expect_right(problem);
    }
}

TEST_P(FewTokensTest, TheMostSlots) {
  const Case made = case_of({.all = 256, .top_k = 8});
  EXPECT_TRUE(takes_one_launch(made.spec.routed, 64));
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32})
    expect_right(Problem(made, Numbers::noisy, {.tokens = 64, .dtype = dtype}));
}

TEST_P(FewTokensTest, TheMostExpertsOfAToken) {
  const Case made = case_of({.all = 256, .top_k = 32});
  EXPECT_TRUE(takes_one_launch(made.spec.routed, 16));
  EXPECT_FALSE(takes_one_launch(made.spec.routed, 17));
  for (const int tokens : {1, 2, 16, 17}) expect_right(Problem(made, Numbers::noisy, {.tokens = tokens}));
}

/// Exact numbers take at most four experts a token, and find what is indexed wrongly.
TEST_P(FewTokensTest, ExactNumbersBitForBit) {
  const Case made = case_of({.all = 128, .top_k = 4});
  for (const int tokens : {1, 3, 16, 64, 65})
    expect_right(Problem(made, Numbers::exact, {.tokens = tokens, .dtype = DType::f32}));
}

TEST_P(FewTokensTest, OneExpertHasAllTokens) {
  const Case made = case_of({.all = 8, .top_k = 1});
  EXPECT_TRUE(takes_one_launch(made.spec.routed, 64));
  const Problem problem(made, Numbers::noisy, {.tokens = 64});
  expect_right(problem.with_routing(std::vector<std::int32_t>(64, 5), problem.call().weights));
}

TEST_P(FewTokensTest, IdsOfNobody) {
  const Case made = case_of({.all = 128, .top_k = 4});
  for (const int tokens : {1, 16, 64, 65}) {
    const Problem problem(made, Numbers::noisy, {.tokens = tokens});
    std::vector<std::int32_t> ids(problem.call().ids.size(), -1);
    const Results none = expect_right(problem.with_routing(ids, problem.call().weights));
    EXPECT_TRUE(on_card::same_bits(none.block_out, std::vector<float>(none.block_out.size(), 0.0f)));
    ids.back() = 77;  // and one slot is somebody's
    expect_right(problem.with_routing(ids, problem.call().weights));
  }
}

TEST_P(FewTokensTest, FewLocalExperts) {
  for (const int here : {1, 3}) {
    const Case made = case_of({.all = 64, .top_k = 8, .here = here});
    EXPECT_TRUE(takes_one_launch(made.spec.routed, 8));
    EXPECT_FALSE(takes_one_launch(made.spec.routed, 9));
    for (const int tokens : {1, 8, 9}) expect_right(Problem(made, Numbers::noisy, {.tokens = tokens}));
  }
}

/// As many slots as the kernel for whole strips takes, and rows that are too wide for that for slices.
TEST_P(FewTokensTest, EveryFormatAndWideRows) {
  constexpr Widths kWide = {.hidden = cuda::kBlockColumns * (cuda::kMostSliceBlocks + 2)};
  for (const Format format : conformance::members(backend().can.weights)) {
    const Case narrow = case_of({.all = 16, .top_k = 4}, format),
               wide = case_of({.all = 4, .top_k = 4}, format, kWide);
    SCOPED_TRACE(narrow.name);
    if (cuda::has_strips_kernel(cuda::expert_layout(narrow.spec.routed).up.storage)) {
      EXPECT_TRUE(takes_one_launch(narrow.spec.routed, cuda::kStripSlots / 4));
      EXPECT_TRUE(takes_one_launch(wide.spec.routed, cuda::kFewestStripSlots / 4));
      EXPECT_FALSE(takes_one_launch(wide.spec.routed, cuda::kFewestStripSlots / 4 - 1));
    }
    expect_right(Problem(narrow, Numbers::noisy, {.tokens = cuda::kStripSlots / 4}));
    expect_right(Problem(narrow, Numbers::exact, {.tokens = cuda::kStripSlots / 4, .dtype = DType::f32}));
    expect_right(Problem(wide, Numbers::noisy, {.tokens = cuda::kFewestStripSlots / 4, .dtype = DType::f32}));
    expect_right(Problem(wide, Numbers::noisy, {.tokens = cuda::kFewestStripSlots / 4 - 1}));
  }
}

/// Rows of the down product of which no token's inputs fit: they are multiplied in parts, the last of them
/// shorter, and columns are missing in its last block.
TEST_P(FewTokensTest, RowsInParts) {
  constexpr int kBlocks = cuda::kMostStripBlocks + 2, kColumns = kBlocks * cuda::kBlockColumns - 32;
  constexpr int kParts = cuda::down_parts(kBlocks);
  static_assert(kParts > 2 && kBlocks % kParts != 0);
  for (const Format format : {Formats::of<format::Mxfp4>(), Formats::of<format::Nvfp4>(),
                              Formats::of<format::Fp8Channel>(), Formats::of<format::Int8>()}) {
    // 8 bits take the one launch with up to one slot an expert.
    const int experts =
        format == Formats::of<format::Mxfp4>() || format == Formats::of<format::Nvfp4>() ? 4 : 16;
    const Case made = case_of({.all = experts, .top_k = 2}, format, {.hidden = 64, .intermediate = kColumns});
    SCOPED_TRACE(made.name);
    EXPECT_TRUE(takes_one_launch(made.spec.routed, cuda::kFewestStripSlots / 2));
    for (const DType dtype : {DType::bf16, DType::f32})
      expect_right(Problem(made, Numbers::noisy, {.tokens = cuda::kFewestStripSlots / 2, .dtype = dtype}));
    expect_right(Problem(made, Numbers::exact, {.tokens = cuda::kFewestStripSlots / 2}));
  }
}

/// Two graphs of one layer and calls without one, in turn: the two kernels for few tokens, which have grids
/// of different sizes and take turns with counters.
TEST_P(FewTokensTest, GraphsBesideOtherCalls) {
  const Case made = case_of({.all = 64, .top_k = 4});
  const Problem few(made, Numbers::noisy, {.tokens = 4}), more(made, Numbers::noisy, {.tokens = 32}, 1);
  const Layer layer = few.layer(backend());
  const Results want_few = run_on_host(layer, host_call(few)),
                want_more = run_on_host(layer, host_call(more));
  CardCall call_few(layer, host_call(few)), call_more(layer, host_call(more));
  const on_card::Stream stream;
  const Graph graph_few(call_few, stream.get()), graph_more(call_more, stream.get());
  for (int round = 0; round < 5; ++round) {
    call_few.poison();
    call_more.poison();
    on_card::check(cudaDeviceSynchronize());
    graph_few.launch(stream.get());
    graph_more.launch(stream.get());
    if (round % 2 == 1) call_few.enqueue(stream.get());
    stream.wait();
    expect_same(call_few.read(), want_few, "4 tokens");
    expect_same(call_more.read(), want_more, "32 tokens");
  }
}

/// Two streams, each with calls of its own on one layer, from one thread in turn and from two.
TEST_P(FewTokensTest, TwoStreamsOfOneLayer) {
  const Case made = case_of({.all = 64, .top_k = 4});
  const Problem problems[] = {{made, Numbers::noisy, {.tokens = 5}, 1},
                              {made, Numbers::noisy, {.tokens = 32, .dtype = DType::f32}, 1}};
  const Layer layer = problems[0].layer(backend());
  const Results want[] = {run_on_host(layer, host_call(problems[0])),
                          run_on_host(layer, host_call(problems[1]))};
  CardCall first(layer, host_call(problems[0])), second(layer, host_call(problems[1]));
  const std::array calls = {&first, &second};
  const on_card::Stream streams[2];
  constexpr int kRounds = 10, kCalls = 20;
  for (int round = 0; round < kRounds; ++round) {
    for (CardCall* call : calls) call->poison();
    on_card::check(cudaDeviceSynchronize());
    const auto enqueue = [&](std::size_t which) { calls[which]->enqueue(streams[which].get()); };
    if (round % 2 == 0) {
      for (int i = 0; i < 2 * kCalls; ++i) enqueue(static_cast<std::size_t>(i % 2));
    } else {
      std::jthread other([&] {
        for (int i = 0; i < kCalls; ++i) enqueue(1);
      });
      for (int i = 0; i < kCalls; ++i) enqueue(0);
    }
    for (std::size_t which = 0; which < 2; ++which) {
      streams[which].wait();
      expect_same(calls[which]->read(), want[which], "stream " + std::to_string(which));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, FewTokensTest, ::testing::ValuesIn(on_card::known_backends()),
                         conformance::test_name);

}  // namespace
}  // namespace sluice
