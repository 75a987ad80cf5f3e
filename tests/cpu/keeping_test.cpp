// SPDX-License-Identifier: Apache-2.0
// What a backend says of keeping its packings (Keeping in experts/backend.h): the bytes are the weights' and
// nothing else's, whatever was in memory before, and other bytes come with another version.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>

#include "activation/activation.h"
#include "core/checksum.h"
#include "experts/backend.h"
#include "format/extents.h"
#include "testing/synthetic.h"

namespace sluice {
namespace {

std::vector<const Backend*> kept() {
  std::vector<const Backend*> all;
  for (const Backend* backend : backends())
    if (backend->keeping.version != 0) all.push_back(backend);
  return all;
}

/// A small layer in each format, and the integers also in groups that fit badly, with zero points and in an
/// order of their own. Rows that fill no block.
std::vector<ExpertsSpec> specs(const Backend& backend) {
  std::vector<ExpertsSpec> all;
  const auto add = [&](Format format, Grouping grouping) {
    all.push_back({.hidden = 512,
                   .intermediate = 256 + (is_ggml_block(format) ? 0 : 24),
                   .experts = 3,
                   .local_experts = 3,
                   .top_k = 1,
                   .formats = {format, format, format, grouping, grouping, grouping},
                   .activation = Activations::of<activation::Silu>(),
                   .gate_up_bias = true,
                   .down_bias = true});
  };
  for (const std::string_view name : Format::all()) {
    const Format format = *Format::parse(name);
    if (!backend.can.weights.has(format)) continue;
    add(format, {.columns = is_integer(format) ? 64 : 0});
  }
  const Format int4 = *Format::parse("int4"), int3 = *Format::parse("int3");
  if (backend.can.weights.has(int4)) {
    add(int4, {.columns = 32, .zero_points = true, .act_order = true});
    add(int3, {.columns = 24, .zero_points = true});
  }
  return all;
}

LayerSpec layer_of(const ExpertsSpec& spec) {
  return {.routed = spec,
          .router = {.score = *Score::parse("softmax"), .experts = spec.experts, .top_k = spec.top_k}};
}

struct Made {
  std::unique_ptr<Executor> executor = make_thread_team(2);
  LayerWeights weights;
  std::unique_ptr<PackedExperts> packed;
  const ExpertsSpec& spec;
  const Backend& backend;

  Made(const Backend& by, const ExpertsSpec& of)
      : weights(testing::synthetic_weights(layer_of(of), 1, *executor)), spec(of), backend(by) {
    packed = backend.pack(input());
  }
  PackInput input() { return {spec, weights.routed, weights.owner, *executor, {}}; }
  std::span<const std::byte> bytes() const { return backend.keeping.bytes(*packed); }
};

/// When this fails, something that packs was changed: raise the layout's version (so that files of the old
/// layout are not read as the new one), and put both numbers here.
TEST(Keeping, OtherBytesComeWithAnotherVersion) {
  const std::map<std::string_view, std::pair<int, std::uint64_t>> known = {
      {"cpu.avx2", {1, 0x740be67ad25ea55f}},
      {"cpu.avx2_int8", {1, 0xb228f73eb2124681}},  // of fewer formats
      {"cpu.avx512", {1, 0x31a6358454853b33}},
      {"cpu.avx512_int8", {1, 0x8db3540257fa6ac9}},
      {"cpu.avx512_bf16", {1, 0x31a6358454853b33}},
      {"cpu.amx", {1, 0x31a6358454853b33}},
      {"cpu.amx_tiles", {1, 0x31a6358454853b33}},
  };
  for (const Backend* backend : kept()) {
    std::uint64_t sum = 0;
    for (const ExpertsSpec& spec : specs(*backend)) sum = checksum(Made(*backend, spec).bytes(), sum);
    const auto at = known.find(backend->name);
    if (at == known.end()) {
      ADD_FAILURE() << "{\"" << backend->name << "\", {" << backend->keeping.version << ", 0x" << std::hex
                    << sum << "}},";
      continue;
    }
    EXPECT_EQ(backend->keeping.version, at->second.first) << backend->name;
    EXPECT_EQ(sum, at->second.second) << backend->name << ": 0x" << std::hex << sum;
  }
}

TEST(Keeping, RunsOfOneSize) {
  for (const Backend* backend : kept()) {
    EXPECT_NE(backend->update, nullptr) << backend->name;
    for (const ExpertsSpec& spec : specs(*backend)) {
      const Made made(*backend, spec);
      EXPECT_EQ(std::ssize(made.bytes()), made.packed->bytes());
      EXPECT_EQ(made.bytes().size() % (64u * static_cast<std::size_t>(spec.local_experts)), 0u);
    }
  }
}

/// Packed over rubbish, every byte is written: padding, too.
TEST(Keeping, AdoptedBytesAreThePackingAndUpdatesWriteAllOfThem) {
  for (const Backend* backend : kept())
    for (const ExpertsSpec& spec : specs(*backend)) {
      SCOPED_TRACE(std::string(backend->name) + " " + storage_text(spec));
      Made made(*backend, spec);
      const std::size_t size = made.bytes().size();
      const std::shared_ptr<std::byte> memory(static_cast<std::byte*>(std::aligned_alloc(64, size)),
                                              std::free);
      std::memset(memory.get(), 0xA5, size);
      const auto adopted = backend->keeping.adopt(made.input(), {memory, size});
      ASSERT_NE(adopted, nullptr);
      EXPECT_EQ(backend->keeping.bytes(*adopted).data(), memory.get());
      EXPECT_EQ(adopted->bytes(), made.packed->bytes());
      for (int e = 0; e < spec.local_experts; ++e)
        backend->update(*adopted, {e, made.weights.routed[static_cast<std::size_t>(e)], {}, *made.executor});
      EXPECT_EQ(std::memcmp(memory.get(), made.bytes().data(), size), 0);
    }
}

TEST(Keeping, AnotherNumberOfBytesIsNotAdopted) {
  for (const Backend* backend : kept()) {
    const ExpertsSpec spec = specs(*backend).front();
    Made made(*backend, spec);
    const std::size_t size = made.bytes().size();
    const std::shared_ptr<std::byte> memory(static_cast<std::byte*>(std::aligned_alloc(64, 2 * size)),
                                            std::free);
    for (const std::size_t other : {size - 64, size + 64, 2 * size, std::size_t{0}})
      EXPECT_EQ(backend->keeping.adopt(made.input(), {memory, other}), nullptr);
  }
}

TEST(Keeping, EveryExpertIsSaidToBeReadOnce) {
  for (const Backend* backend : kept()) {
    const ExpertsSpec spec = specs(*backend).front();
    Made made(*backend, spec);
    std::vector<std::atomic<int>> read(static_cast<std::size_t>(spec.local_experts));
    PackInput input = made.input();
    input.read_one = [&](std::int32_t e) { ++read[static_cast<std::size_t>(e)]; };
    (void)backend->pack(input);
    for (const auto& count : read) EXPECT_EQ(count, 1);
  }
}

/// The bytes of a view are those of its buffers, no more and no less.
TEST(Keeping, ExtentsAreTheViewsBytes) {
  for (const ExpertsSpec& spec : specs(*kept().front())) {
    SCOPED_TRACE(storage_text(spec));
    const std::unique_ptr<Executor> executor = make_thread_team(1);
    const LayerWeights weights = testing::synthetic_weights(layer_of(spec), 1, *executor);
    for (const WeightMatrix* matrix : {&weights.routed[0].up, &weights.routed[1].down}) {
      std::int64_t bytes = 0;
      for (const format::Extent& extent : format::extents_of(*matrix)) {
        bytes += extent.lines * static_cast<std::int64_t>(extent.line_bytes);
        EXPECT_EQ(extent.lines, 1);
        EXPECT_EQ(extent.end() - extent.begin(), static_cast<std::ptrdiff_t>(extent.line_bytes));
      }
      const format::Geometry shape = geometry(*matrix);
      // Scales of bf16 where the format says 16 bits; the second scale is no view.
      EXPECT_EQ(bytes,
                format::matrix_bytes(shape, matrix->rows, matrix->cols) - (shape.second_scale ? 4 : 0));
    }
  }
}

}  // namespace
}  // namespace sluice
