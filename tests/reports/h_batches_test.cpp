// SPDX-License-Identifier: Apache-2.0
// Section H of the reports: empty, huge and ragged batches.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "core/bits.h"
#include "format/bf16.h"
#include "testing/drawn_layer.h"
#include "testing/synthetic.h"
#include "testing/usable_backends.h"
#include "tests/reports/rows.h"
#include "tests/reports/toy.h"

namespace sluice::reports {
namespace {

using testing::Numbers;

Toy drawn(const LayerSpec& spec, std::uint64_t seed = 2) {
  return {.spec = spec, .weights = testing::draw_weights(spec, Numbers::noisy, seed)};
}

/// Bits, or of the definition, whose flat sum rounds once, numbers.
::testing::AssertionResult same(const Backend& backend, std::span<const float> got,
                                std::span<const float> want) {
  const bool ok = testing::is_reference(backend) ? rel_l2(got, want) < 1e-6 : std::ranges::equal(got, want);
  return (ok ? ::testing::AssertionSuccess() : ::testing::AssertionFailure()) << backend.name;
}

TEST(Reports, B81_NoTokens) {
  for (const Format format : all_formats()) {
    const LayerSpec spec = spec_of(format, kSilu, {}, {.hidden = 2880, .intermediate = 32, .experts = 2});
    const Toy toy = make(spec, {linear_expert(), linear_expert(2)});
    for (const Backend* backend : fitting(spec, {kContiguous, kBatched})) {
      const Layer layer = layer_on(*backend, toy, 2, {kContiguous, kBatched});
      const std::int32_t no_rows[] = {0, 0, 0}, no_counts[] = {0, 0};
      const RowsView nothing{nullptr, DType::bf16, 0, 2880, 5760};
      EXPECT_NO_THROW(layer.run({.hidden = nothing})) << backend->name;
      EXPECT_NO_THROW(layer.run_rows({.hidden = nothing, .offsets = no_rows})) << backend->name;
      EXPECT_NO_THROW(layer.run_rows({.hidden = nothing, .counts = no_counts})) << backend->name;
      // Two ranks, one of which gets nothing.
      Call call = linear_call({1, 2, 3, 4, 5}, 2880);
      call.ids = {0, 0, 0, 0, 0};
      call.weights.assign(5, 1.0f);
      const std::vector<float> out = over_ranks(*backend, toy, call, {{0}, {1}});
      for (std::size_t t = 0; t < 5; ++t)
        EXPECT_EQ(out[t * 2880], static_cast<float>(t + 1)) << backend->name << ", " << format.str();
    }
  }
}

/// 131073 rows 16384 numbers apart: the last begins at element 2^31. Only the pages that are touched exist.
class FarRows {
 public:
  static constexpr int kRows = 131073, kWidth = 32;
  static constexpr std::ptrdiff_t kStride = 16384 * 2;

  FarRows()
      : at_(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                   0)) {}
  FarRows(const FarRows&) = delete;
  FarRows& operator=(const FarRows&) = delete;
  ~FarRows() {
    if (there()) ::munmap(at_, kBytes);
  }
  bool there() const { return at_ != MAP_FAILED; }
  void set(int row, int col, float value) {
    store<std::uint16_t>(static_cast<std::byte*>(at_) + row * kStride + col * 2,
                         format::float_to_bf16(value));
  }
  RowsView view() const { return {static_cast<const std::byte*>(at_), DType::bf16, kRows, kWidth, kStride}; }

 private:
  static constexpr std::size_t kBytes = std::size_t{kRows} * kStride;
  void* at_;
};

TEST(Reports, B82_OffsetsBeyondTwoToTheThirtyOne) {
  static_assert(std::int64_t{FarRows::kRows - 1} * (FarRows::kStride / 2) == std::int64_t{1} << 31);
  FarRows rows;
  ASSERT_TRUE(rows.there());
  // The last row is row 5 again; an offset that wraps around arrives at row 0, which is another.
  for (int c = 0; c < FarRows::kWidth; ++c) {
    for (const int row : {5, FarRows::kRows - 1}) rows.set(row, c, static_cast<float>(c - 7) / 8);
    rows.set(0, c, static_cast<float>(9 - c) / 4);
  }
  const LayerSpec spec = spec_of(kMxfp4, kSilu, {}, {.hidden = 32, .intermediate = 32, .experts = 8});
  const Toy toy = drawn(spec);
  std::vector<std::int32_t> ids(FarRows::kRows);
  for (std::size_t t = 0; t < ids.size(); ++t) ids[t] = static_cast<std::int32_t>(t % 8);
  ids.back() = ids[5];
  const std::vector<float> weights(ids.size(), 1);
  std::vector<float> out(ids.size() * 32);
  for (const Backend* backend : fitting(spec))
    for (const int at_once : {8192, FarRows::kRows}) {
      if (testing::is_reference(*backend) && at_once < FarRows::kRows) continue;  // slow, and the same path
      const Layer layer = layer_on(*backend, toy);
      std::vector<std::byte> workspace(layer.workspace_bytes(at_once));
      std::ranges::fill(out, kUnwritten);
      layer.run({.hidden = rows.view(),
                 .routing = {ids.data(), weights.data(), FarRows::kRows, 1},
                 .experts_out = out.data(),
                 .workspace = workspace});
      const std::span<const float> sixth = std::span(out).subspan(5 * 32, 32), last = std::span(out).last(32);
      // The last part of several is a batch of another size.
      if (at_once == FarRows::kRows || testing::is_batch_invariant(*backend)) {
        EXPECT_TRUE(std::ranges::equal(sixth, last)) << backend->name << ", " << at_once;
      } else {
        EXPECT_LT(rel_l2(last, sixth), 1e-6) << backend->name << ", " << at_once;
      }
      EXPECT_GT(norm(last), 0) << backend->name << ", " << at_once;
      // Rows of zeros between.
      EXPECT_EQ(std::ranges::count(out, 0.0f), std::ssize(out) - 96) << backend->name << ", " << at_once;
    }
  // 2^21 tokens of 8 slots of 2048 numbers: sizes go on growing evenly.
  const LayerSpec wide =
      spec_of(kMxfp4, kSilu, {}, {.hidden = 2048, .intermediate = 128, .experts = 8, .top_k = 8});
  const auto team = make_thread_team(2);
  const Toy large{.spec = wide, .weights = testing::synthetic_weights(wide, 1, *team)};
  for (const Backend* backend : fitting(wide)) {
    const Layer layer = layer_on(*backend, large);
    const auto bytes = [&](int power) { return static_cast<double>(layer.workspace_bytes(1 << power)); };
    for (int power = 10; power < 21; ++power)
      EXPECT_NEAR(bytes(power + 1) - bytes(power), (bytes(21) - bytes(20)) / (1 << (20 - power)), 4096)
          << backend->name;
  }
}

TEST(Reports, B84_GroupsOfFewerRowsThanATile) {
  for (const Format format : all_formats()) {
    const LayerSpec spec = spec_of(format, kSilu, {}, {.hidden = 32, .intermediate = 64, .experts = 2});
    const Toy toy = drawn(spec);
    for (const Backend* backend : fitting(spec, {kContiguous, kBatched})) {
      const Layer layer = layer_on(*backend, toy, 2, {kContiguous, kBatched});
      for (const int max_tokens : {8, 16, 32, 64}) {
        const int second = std::min(10, max_tokens);
        Call call{.tokens = 1 + second, .hidden = draw_rows(1 + second, 32, 6)};
        call.ids.assign(static_cast<std::size_t>(call.tokens), 1);
        call.ids[0] = 0;
        const std::vector<float> flat = run(layer, call).experts;
        const std::vector<float> out = run_batched(
            *backend, toy, {.counts = {1, second}, .max_tokens = max_tokens, .used = call.hidden});
        const std::span all(out);
        const auto from = static_cast<std::size_t>(max_tokens) * 32,
                   used = static_cast<std::size_t>(second) * 32;
        EXPECT_TRUE(same(*backend, all.first(32), std::span(flat).first(32)))
            << format.str() << ", " << max_tokens;
        EXPECT_TRUE(same(*backend, all.subspan(from, used), std::span(flat).subspan(32))) << max_tokens;
        EXPECT_EQ(std::ranges::count(out, kUnwritten), std::ssize(out) - 32 * (1 + second)) << backend->name;
      }
      Call two{.tokens = 2, .hidden = draw_rows(2, 32, 6), .ids = {0, 1}};
      EXPECT_TRUE(same(*backend, run_contiguous(layer, {0, 1, 2}, two.hidden), run(layer, two).experts))
          << format.str();
    }
  }
}

/// The rows of the first `tokens` tokens alone are those of the whole call.
void expect_prefix(const Layer& layer, const Call& call, const Output& whole, int tokens) {
  const LayerSpec& spec = layer.plan().request.layer;
  Call part = call;
  part.tokens = tokens;
  part.hidden.resize(static_cast<std::size_t>(tokens) * spec.routed.hidden);
  part.ids.resize(static_cast<std::size_t>(tokens) * spec.routed.top_k);
  part.weights.resize(part.ids.size());
  const Output out = run(layer, part);
  EXPECT_TRUE(std::ranges::equal(out.experts, std::span(whole.experts).first(out.experts.size())))
      << layer.plan().chosen << ", " << tokens << " tokens";
}

/// Blocks of 32 bytes with a scale, as Q8_0 has.
TEST(Reports, B85_EveryTokenCountHasAKernel) {
  const CallMode invariant = CallModes::of<call::BatchInvariant>();
  for (const Format format :
       {kInt8, *Format::parse("mxfp8"), *Format::parse("q4_0"), *Format::parse("q8_0")}) {
    const LayerSpec spec =
        spec_of(format, kSilu, {}, {.hidden = 32, .intermediate = 32, .experts = 64, .top_k = 8});
    const Toy toy = drawn(spec);
    const Call call = draw_call(spec, 519, 4);
    for (const Backend* backend : fitting(spec, {invariant})) {
      const Layer layer = layer_on(*backend, toy, 2, {invariant});
      const Output whole = run(layer, call);
      EXPECT_EQ(run(layer, call, 512), whole) << backend->name << ", 512 + 7";
      EXPECT_EQ(run(layer, call, 1), whole) << backend->name << ", one by one";
      const int most = is_ggml_block(format) ? 9 : 70;
      for (int tokens = 1; tokens <= most; ++tokens) expect_prefix(layer, call, whole, tokens);
    }
  }
}

TEST(Reports, B86_NoRowIsOneTooMany) {
  constexpr int kRows = 65537;
  const LayerSpec spec = spec_of(kNvfp4, kSilu, {}, {.hidden = 16, .intermediate = 16});
  const Toy toy = make(spec, {linear_expert()});
  std::vector<float> x(kRows);
  for (std::size_t t = 0; t < x.size(); ++t) x[t] = static_cast<float>(t % 509 + 1);
  const Call call = linear_call(x, 16);
  for (const Backend* backend : fitting(spec)) {
    const Output out = run(*backend, toy, call);
    for (std::size_t t = 0; t < x.size(); ++t)
      ASSERT_EQ(out.experts[t * 16], x[t]) << backend->name << ", row " << t;
  }
}

}  // namespace
}  // namespace sluice::reports
