// SPDX-License-Identifier: Apache-2.0
// Layers from a cache give the bits of layers that were packed, whatever happened to the cache or to the
// weights in the meantime.
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "core/checksum.h"
#include "engine/packed_file.h"
#include "format/integers.h"
#include "sluice/checkpoint.h"
#include "sluice/slice.h"
#include "testing/rounding.h"
#include "testing/usable_backends.h"
#include "tests/engine/scratch_folder.h"
#include "tests/engine/small_layer.h"

namespace sluice {
namespace {

using testing::read_file;
using testing::ScratchFolder;
using testing::write_file;

const std::string kFixtures = SLUICE_SOURCE_DIR "/tests/data/fixtures/";

/// Those that round activations pack as others do (tests/cpu) and refuse most of the layers here.
std::vector<std::string> kept_backends() {
  std::vector<std::string> names;
  for (const Backend* backend : testing::usable_backends())
    if (backend->keeping.version != 0 && testing::rounding_of(backend->name) == testing::Rounding::none)
      names.emplace_back(backend->name);
  return names;
}

/// A layer to load, and a call to compare by.
struct Subject {
  LayerSpec spec;
  LayerWeights weights;
  testing::DrawnCall call = testing::draw_call(spec, testing::Numbers::noisy, {.tokens = 9}, 2);
  std::shared_ptr<Executor> executor = make_thread_team(2);

  Layer load(const std::string& backend, const std::string& cache,
             CacheCheck when = CacheCheck::at_first_use) const {
    const Plan plan = choose({.layer = spec,
                              .device = testing::device_for(backend),
                              .tokens = {1},
                              .by_name = backend,
                              .calls = {CallModes::of<call::Update>()}});
    return Layer(plan, weights, {.executor = executor, .cache = cache, .cache_check = when});
  }
  /// What `layer` answers when every expert is asked, one token at a time and the shared expert with them.
  std::vector<float> answer(const Layer& layer) const {
    std::vector<float> all;
    for (int first = 0; first < spec.routed.experts; ++first) {
      std::vector<std::int32_t> ids(static_cast<std::size_t>(spec.routed.top_k));
      for (std::size_t i = 0; i < ids.size(); ++i)
        ids[i] = (first + static_cast<std::int32_t>(i)) % spec.routed.experts;
      const std::vector<float> shares(ids.size(), 0.5f);
      std::vector<float> out(static_cast<std::size_t>(spec.routed.hidden));
      std::vector<std::byte> workspace(layer.workspace_bytes(1));
      RowsView row = call.hidden;
      row.rows = 1;
      layer.run({.hidden = row,
                 .routing = {ids.data(), shares.data(), 1, spec.routed.top_k},
                 .block_out = out.data(),
                 .workspace = workspace});
      all.insert(all.end(), out.begin(), out.end());
    }
    return all;
  }
};

Subject drawn(std::uint64_t seed = 1) {
  const LayerSpec spec = small::spec();
  return {spec, testing::draw_weights(spec, testing::Numbers::noisy, seed)};
}

Subject published(const std::string& directory, int position = 0) {
  const Checkpoint model = Checkpoint::open(directory);
  const int layer = model.info().moe_layers[static_cast<std::size_t>(position)];
  return {model.spec(layer), model.weights_to_pack(layer)};
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::size_t body_offset(const std::string& file) {
  std::uint64_t offset = 0;
  std::memcpy(&offset, file.data() + 32, sizeof offset);
  return offset;
}

TEST(PackedCache, SecondStartGivesTheSameBitsInEveryFormat) {
  for (const char* name : {"gpt_oss_mxfp4", "gpt_oss_bf16", "deepseek_v4_fp4", "deepseek_v4_base_fp8",
                           "deepseek_v4_nvfp4", "qwen3_moe_fp8_channel", "mixtral_awq",
                           "mixtral_gptq_act_order", "qwen3_moe_ct_int3", "qwen3_moe_ct_int4_asym"})
    for (const std::string& backend : kept_backends()) {
      const ScratchFolder cache;
      const Subject subject = published(kFixtures + name);
      const int packings = subject.spec.shared ? 2 : 1;
      const Layer plain = subject.load(backend, "");
      EXPECT_EQ(plain.cache().loaded + plain.cache().written, 0);
      const Layer first = subject.load(backend, cache.path());
      EXPECT_EQ(first.cache().written, packings) << name;
      const std::vector<float> want = subject.answer(plain);
      for (const CacheCheck when : {CacheCheck::at_first_use, CacheCheck::at_load}) {
        const Layer second = subject.load(backend, cache.path(), when);
        EXPECT_EQ(second.cache().loaded, packings) << name;
        EXPECT_EQ(second.packed_bytes(), plain.packed_bytes());
        EXPECT_TRUE(same(subject.answer(second), want)) << name << ", " << backend;
        EXPECT_TRUE(same(subject.answer(second), want)) << name << ", " << backend;
        EXPECT_EQ(second.cache().repaired, 0);
        EXPECT_TRUE(second.cache().notes.empty()) << second.cache().notes.front();
      }
      EXPECT_TRUE(same(subject.answer(first), want)) << name;
    }
}

TEST(PackedCache, ABackendThatIsNotKeptSaysSo) {
  const ScratchFolder cache;
  const Subject subject = drawn();
  const Layer layer = subject.load("reference", cache.path());
  ASSERT_EQ(layer.cache().notes.size(), 1u);
  EXPECT_TRUE(cache.names().empty());
}

TEST(PackedCache, ExpertsThatDifferAreKeptInOneFileAFormat) {
  Subject subject = drawn();
  subject.spec.routed.others = {{1, subject.spec.shared->experts.formats},
                                {6, subject.spec.shared->experts.formats}};
  subject.weights = testing::draw_weights(subject.spec, testing::Numbers::noisy, 1);
  for (const std::string& backend : kept_backends()) {
    const ScratchFolder cache;
    const std::vector<float> want = subject.answer(subject.load(backend, cache.path()));
    EXPECT_EQ(cache.names().size(), 3u);
    const Layer second = subject.load(backend, cache.path());
    EXPECT_EQ(second.cache().loaded, 3);
    EXPECT_TRUE(same(subject.answer(second), want));
  }
}

TEST(PackedCache, DamageIsFoundAtFirstUseRepairedAndTheFileRemoved) {
  for (const std::string& backend : kept_backends()) {
    const ScratchFolder cache;
    const Subject subject = published(kFixtures + "qwen3_moe_ct_nvfp4");
    const std::vector<float> want = subject.answer(subject.load(backend, cache.path()));
    const std::string path = cache.path() + "/" + cache.names().front();
    const std::string whole = read_file(path);
    const std::size_t body = body_offset(whole);
    for (const double share : {0.0, 0.37, 0.9999}) {
      write_file(path, whole);
      testing::flip(path, body + static_cast<std::size_t>(share * static_cast<double>(whole.size() - body)),
                    3);
      const Layer layer = subject.load(backend, cache.path());
      EXPECT_EQ(layer.cache().loaded, 1);
      EXPECT_TRUE(same(subject.answer(layer), want)) << share;
      EXPECT_EQ(layer.cache().repaired, 1) << share;
      EXPECT_EQ(layer.cache().notes.size(), 1u);
      EXPECT_TRUE(cache.names().empty()) << "a damaged file stayed";
      EXPECT_TRUE(same(subject.answer(layer), want));
      EXPECT_EQ(layer.cache().repaired, 1);
    }
    EXPECT_EQ(subject.load(backend, cache.path()).cache().written, 1);
    EXPECT_EQ(read_file(path), whole);
  }
}

TEST(PackedCache, DamageIsFoundAtLoadWhereAskedForOrWithoutAnOwner) {
  for (const bool owned : {true, false})
    for (const std::string& backend : kept_backends()) {
      const ScratchFolder cache;
      Subject subject = drawn();
      const std::shared_ptr<const void> owner = subject.weights.owner;
      if (!owned) subject.weights.owner = {};
      const std::vector<float> want = subject.answer(subject.load(backend, cache.path()));
      for (const std::string& name : cache.names())
        testing::flip(cache.path() + "/" + name, (std::size_t{2} << 20) + 5, 1);
      const Layer layer =
          subject.load(backend, cache.path(), owned ? CacheCheck::at_load : CacheCheck::at_first_use);
      EXPECT_EQ(layer.cache().loaded, 0);
      EXPECT_EQ(layer.cache().written, 2);
      EXPECT_EQ(layer.cache().notes.size(), 2u);
      EXPECT_TRUE(same(subject.answer(layer), want));
      EXPECT_EQ(subject.load(backend, cache.path()).cache().loaded, 2);
    }
}

TEST(PackedCache, HeadersAndLengthsThatAreDamagedAreRebuilt) {
  for (const std::string& backend : kept_backends()) {
    const ScratchFolder cache;
    const Subject subject = published(kFixtures + "qwen3_moe_ct_nvfp4");
    const std::vector<float> want = subject.answer(subject.load(backend, cache.path()));
    const std::string path = cache.path() + "/" + cache.names().front(), whole = read_file(path);
    const auto rebuilt = [&] {
      const Layer layer = subject.load(backend, cache.path());
      EXPECT_EQ(layer.cache().written, 1);
      EXPECT_EQ(layer.cache().notes.size(), 1u);
      EXPECT_TRUE(same(subject.answer(layer), want));
      EXPECT_EQ(read_file(path), whole);
    };
    for (const std::size_t at : {0, 9, 13, 17, 25, 33, 45, 200}) {
      SCOPED_TRACE(at);
      testing::flip(path, at, 2);
      rebuilt();
    }
    for (const std::size_t length : {std::size_t{0}, std::size_t{100}, whole.size() / 2, whole.size() - 1}) {
      SCOPED_TRACE(length);
      write_file(path, whole.substr(0, length));
      rebuilt();
    }
  }
}

/// Not even the gathering of columns leaves its memory when somebody made the bytes up. (Under the address
/// sanitizer this says more.)
TEST(PackedCache, BytesThatSomebodyMadeUpAreOnlyNumbers) {
  for (const char* name :
       {"gpt_oss_mxfp4", "deepseek_v4_base_fp8", "mixtral_gptq_act_order", "qwen3_moe_ct_int4_asym"})
    for (const std::string& backend : kept_backends())
      for (const int fill : {0x00, 0x7F, 0xFF, 0x95}) {
        const ScratchFolder cache;
        const Subject subject = published(kFixtures + name);
        (void)subject.load(backend, cache.path());
        const std::string path = cache.path() + "/" + cache.names().front(), whole = read_file(path);
        std::uint32_t identity = 0;
        std::memcpy(&identity, whole.data() + 12, sizeof identity);
        std::uint64_t runs = 0;
        std::memcpy(&runs, whole.data() + 16, sizeof runs);
        const std::vector<std::byte> body(whole.size() - body_offset(whole), std::byte(fill));
        ASSERT_EQ(write_packed(path, whole.substr(40, identity), runs, body, *subject.executor), "");
        const Layer layer = subject.load(backend, cache.path());
        EXPECT_GE(layer.cache().loaded, 1);
        try {
          (void)subject.answer(layer);
        } catch (
            const Error& error) {  // the order of columns was written anew, and so the checksum is another
          EXPECT_EQ(error.info().code, "cache_contradicts_weights");
        }
      }
}

TEST(PackedCache, OtherWeightsOfAFileAreStale) {
  for (const std::string& backend : kept_backends()) {
    const ScratchFolder cache, model;
    std::filesystem::copy(kFixtures + "gpt_oss_bf16", model.path(), std::filesystem::copy_options::recursive);
    const std::string file = model.path() + "/model.safetensors";
    (void)published(model.path()).load(backend, cache.path());
    EXPECT_EQ(published(model.path()).load(backend, cache.path()).cache().loaded, 1);
    const std::vector<std::string> names = cache.names();
    for (const bool keep_time : {false, true}) {
      SCOPED_TRACE(keep_time);
      const auto time = std::filesystem::last_write_time(file);
      testing::flip(file, read_file(file).size() / 2, 6);
      // Somebody sets the time back: that it was changed is a time of its own.
      if (keep_time) std::filesystem::last_write_time(file, time);
      const Subject changed = published(model.path());
      const Layer layer = changed.load(backend, cache.path());
      EXPECT_EQ(layer.cache().written, 1);
      ASSERT_EQ(layer.cache().notes.size(), 1u);
      EXPECT_NE(layer.cache().notes.front().find("stale"), std::string::npos);
      EXPECT_EQ(cache.names(), names) << "one file for all states of the same weights";
      EXPECT_TRUE(same(changed.answer(layer), changed.answer(changed.load(backend, ""))));
      EXPECT_EQ(published(model.path()).load(backend, cache.path()).cache().loaded, 1);
    }
  }
}

/// As a copy that carries the times along, and a clock that stands: only samples of the bytes are left to
/// tell.
TEST(PackedCache, SamplesTellOtherWeightsWithTheSameTimes) {
  const std::string backend = kept_backends().front();
  const ScratchFolder cache, model;
  std::filesystem::copy(kFixtures + "gpt_oss_bf16", model.path(), std::filesystem::copy_options::recursive);
  const Subject before = published(model.path());
  (void)before.load(backend, cache.path());
  const std::string file = model.path() + "/model.safetensors";
  std::string bytes = read_file(file);
  for (std::size_t at = bytes.size() / 3; at < bytes.size(); ++at)
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
  write_file(file, bytes);
  Subject after = published(model.path());
  for (std::size_t i = 0; i < after.weights.files.size(); ++i) {
    after.weights.files[i].modified_ns = before.weights.files[i].modified_ns;
    after.weights.files[i].status_changed_ns = before.weights.files[i].status_changed_ns;
  }
  EXPECT_EQ(after.load(backend, cache.path()).cache().loaded, 0);
}

TEST(PackedCache, OtherWeightsInMemoryHaveAFileOfTheirOwn) {
  for (const std::string& backend : kept_backends()) {
    const ScratchFolder cache;
    EXPECT_EQ(drawn(1).load(backend, cache.path()).cache().written, 2);
    EXPECT_EQ(drawn(2).load(backend, cache.path()).cache().written, 2);
    EXPECT_EQ(cache.names().size(), 4u);
    EXPECT_EQ(drawn(1).load(backend, cache.path()).cache().loaded, 2);
  }
}

/// The same file, the same shapes: other places in it.
TEST(PackedCache, LayersRanksAndSubsetsAreToldApart) {
  const std::string backend = kept_backends().front();
  const ScratchFolder cache;
  const std::string directory = SLUICE_SOURCE_DIR "/models/tiny-gpt-oss-mxfp4";
  for (const int position : {0, 1})
    EXPECT_EQ(published(directory, position).load(backend, cache.path()).cache().written, 1);
  for (const int rank : {0, 1}) {
    const Subject whole = published(directory);
    const LayerSlice part = slice(whole.spec, whole.weights, even_share(whole.spec, rank, 2));
    const Subject subject{part.spec, part.weights};
    EXPECT_EQ(subject.load(backend, cache.path()).cache().written, 1);
    EXPECT_EQ(subject.load(backend, cache.path()).cache().loaded, 1);
  }
  EXPECT_EQ(cache.names().size(), 4u);
}

TEST(PackedCache, UpdatesStayInTheProcess) {
  for (const std::string& backend : kept_backends()) {
    const ScratchFolder cache;
    const Subject subject = drawn(1), other = drawn(2);
    (void)subject.load(backend, cache.path());
    std::vector<std::string> before;
    for (const std::string& name : cache.names()) before.push_back(read_file(cache.path() + "/" + name));
    const auto updated = [&](const std::string& directory) {
      Layer layer = subject.load(backend, directory);
      layer.update_expert(3, other.weights.routed[5], other.weights.owner);
      layer.update_shared(other.weights.shared[0], other.weights.shared_gate, other.weights.owner);
      return subject.answer(layer);
    };
    EXPECT_TRUE(same(updated(cache.path()), updated("")));
    for (std::size_t i = 0; i < before.size(); ++i)
      EXPECT_EQ(read_file(cache.path() + "/" + cache.names()[i]), before[i]);
    EXPECT_TRUE(
        same(subject.answer(subject.load(backend, cache.path())), subject.answer(subject.load(backend, ""))));
  }
}

TEST(PackedCache, AnExpertThatIsReplacedIsNotLookedAt) {
  for (const std::string& backend : kept_backends()) {
    const ScratchFolder cache;
    const Subject subject = published(kFixtures + "qwen3_moe_ct_nvfp4");
    const std::vector<float> want = subject.answer(subject.load(backend, cache.path()));
    testing::flip(cache.path() + "/" + cache.names().front(), std::size_t{2} << 20, 0);  // of expert 0
    Layer layer = subject.load(backend, cache.path());
    layer.update_expert(0, subject.weights.routed[0], subject.weights.owner);
    EXPECT_TRUE(same(subject.answer(layer), want));
    EXPECT_EQ(layer.cache().repaired, 0);
  }
}

/// The layer is then as it was: what the cache has of the expert is still to be looked at.
TEST(PackedCache, AnExpertWhoseUpdateIsRefusedIsLookedAt) {
  for (const std::string& backend : kept_backends()) {
    const ScratchFolder cache;
    const Subject subject = published(kFixtures + "qwen3_moe_ct_int4");
    const std::vector<float> want = subject.answer(subject.load(backend, cache.path()));
    testing::flip(cache.path() + "/" + cache.names().front(), std::size_t{2} << 20, 0);  // of expert 0
    Layer layer = subject.load(backend, cache.path());
    ExpertWeights wide = subject.weights.routed[0];  // float32 where the layer was packed with binary16
    ASSERT_EQ(wide.down.scales.dtype, DType::f16);
    const std::int64_t groups = format::groups_of_row(wide.down);
    const std::vector<float> ones(static_cast<std::size_t>(wide.down.rows * groups), 1.0f);
    wide.down.scales = {reinterpret_cast<const std::byte*>(ones.data()), DType::f32, 4 * groups, 4};
    small::expect_error("update_does_not_fit", [&] { layer.update_expert(0, wide, subject.weights.owner); });
    EXPECT_TRUE(same(subject.answer(layer), want)) << backend;
    EXPECT_EQ(layer.cache().repaired, 1) << backend;
  }
}

TEST(PackedCache, CallsFromSeveralThreadsLookOnce) {
  for (const std::string& backend : kept_backends()) {
    const ScratchFolder cache;
    const Subject subject = published(kFixtures + "qwen3_moe_ct_nvfp4");
    const std::vector<float> want = subject.answer(subject.load(backend, cache.path()));
    testing::flip(cache.path() + "/" + cache.names().front(), (std::size_t{2} << 20) + 100, 0);
    const Layer layer = subject.load(backend, cache.path());
    std::vector<std::thread> callers;
    for (int i = 0; i < 4; ++i) callers.emplace_back([&] { EXPECT_TRUE(same(subject.answer(layer), want)); });
    for (std::thread& caller : callers) caller.join();
    EXPECT_EQ(layer.cache().repaired, 1);
  }
}

TEST(PackedCache, WhatCannotBeWrittenIsSaidAndTheLayerWorks) {
  for (const std::string& backend : kept_backends()) {
    const ScratchFolder folder;
    write_file(folder.path() + "/file", "");
    const Subject subject = drawn();
    const Layer layer = subject.load(backend, folder.path() + "/file/cache");
    EXPECT_EQ(layer.cache().written, 0);
    ASSERT_EQ(layer.cache().notes.size(), 2u);
    EXPECT_NE(layer.cache().notes.front().find("works without"), std::string::npos);
    EXPECT_TRUE(same(subject.answer(layer), subject.answer(subject.load(backend, ""))));
  }
}

/// Scales are looked at before they are packed, and not when they were.
TEST(PackedCache, BadScalesAreRefusedAsEver) {
  const std::string backend = kept_backends().front();
  const ScratchFolder cache, model;
  std::filesystem::copy(SLUICE_SOURCE_DIR "/models/tiny-gpt-oss-mxfp4", model.path(),
                        std::filesystem::copy_options::recursive);
  const Subject subject = published(model.path());
  const WeightMatrix& up = subject.weights.routed[2].up;
  const auto at = static_cast<std::size_t>(up.scales.data - subject.weights.files.front().data);
  {
    std::fstream file(model.path() + "/model.safetensors", std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(at)).put('\xFF');
  }
  const Subject damaged = published(model.path());
  for (const std::string& directory : {std::string(), cache.path()}) {
    try {
      (void)damaged.load(backend, directory);
      ADD_FAILURE() << "a NaN scale was packed";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::corrupt_file) << error.what();
    }
  }
  EXPECT_TRUE(cache.names().empty());
}

/// The cache is keyed by the files of the experts. Projections are decoded anew from a file that may be
/// another, so where they have scales their values are looked at even if no expert is packed.
TEST(PackedCache, ProjectionsWithScalesAreLookedAtOnEveryStart) {
  for (const bool scaled : {false, true}) {
    const LayerSpec spec = small::latent_spec();
    LayerWeights weights = testing::draw_weights(spec, testing::Numbers::noisy, 1);
    const float one = 1;
    if (scaled) {  // as FP8 that a scale for the whole matrix goes with
      weights.latent->in.format = Formats::of<format::Fp8Tensor>();
      weights.latent->in.row_stride = weights.latent->in.cols;
      weights.latent->in.col_stride = 1;
      weights.latent->in.scales = {.data = reinterpret_cast<const std::byte*>(&one)};
    }
    int looked = 0;
    weights.check = [&looked] { ++looked; };
    const ScratchFolder cache;
    const std::string backend = kept_backends().front();
    const auto load = [&] { return Layer(small::plan_for(spec, backend), weights, {.cache = cache.path()}); };
    (void)load();
    EXPECT_EQ(looked, 1);
    EXPECT_GT(load().cache().loaded, 0);
    EXPECT_EQ(looked, scaled ? 2 : 1);
  }
}

}  // namespace
}  // namespace sluice
