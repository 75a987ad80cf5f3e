// SPDX-License-Identifier: Apache-2.0
// Section L of the reports: integers and adapters.
#include <cmath>

#include "sluice/error.h"
#include "sluice/lora.h"
#include "tests/reports/model.h"
#include "tests/reports/rows.h"
#include "tests/reports/toy.h"

namespace sluice::reports {
namespace {

/// A fixture whose first gate weight of expert 0 is edited: what its maker calls the tensors, and what is
/// added to stored zero points.
struct ZeroPointFile {
  const char* name;
  std::string module, codes, zeros, scales;
  unsigned added;
};

/// Code 9 and scale 0.5 with each zero point, as files store them.
void expect_stored_zero_points() {
  const std::string mixtral = "model.layers.0.block_sparse_moe.experts.0.w1.";
  const ZeroPointFile files[] = {{"mixtral_gptq", mixtral, "qweight", "qzeros", "scales", 1},
                                 {"mixtral_awq", mixtral, "qweight", "qzeros", "scales", 0},
                                 {"qwen3_moe_ct_int4_asym", "model.layers.0.mlp.experts.0.gate_proj.",
                                  "weight_packed", "weight_zero_point", "weight_scale", 0}};
  for (const ZeroPointFile& file : files)
    for (const unsigned zero : {7u, 0u, 15u}) {
      const Edited model(fixture(file.name), [&](auto& m) {
        if (file.added == 1) m.in_config("\"sym\": true", "\"sym\": false");
        m.template set<std::uint32_t>(file.module + file.codes, 0, 9);
        m.template set<std::uint32_t>(file.module + file.zeros, 0, (zero - file.added) & 15u);
        m.template set<std::uint16_t>(file.module + file.scales, 0, 0x3800);  // 0.5
      });
      const LayerWeights weights = model->weights(0);
      std::vector<double> row(static_cast<std::size_t>(weights.routed[0].gate->cols));
      decode_row(*weights.routed[0].gate, 0, row.data());
      EXPECT_EQ(row[0], (9.0 - zero) / 2) << file.name << ", zero point " << zero;
    }
}

TEST(Reports, B109_ZeroPointsAreStoredAsTheyAreAndMinusOne) {
  expect_stored_zero_points();
  for (const format::IntegerFile file :
       {format::IntegerFile::rows, format::IntegerFile::gptq, format::IntegerFile::awq}) {
    const Grouping grouping{.columns = 32, .zero_points = true};
    auto down = shared(format::make_integers(kInt4, {.grouping = grouping, .file = file}, 32, 32));
    const unsigned zeros[] = {7, 0, 15};
    for (std::int64_t r = 0; r < 32; ++r) {
      const unsigned zero = zeros[static_cast<std::size_t>(r) % 3];
      format::set_zero(*down, r, 0, zero);
      put_scale(*down, r, 0, 0.5f);
      for (std::int64_t c = 0; c < 32; ++c) format::set_code(*down, r, c, c == 0 ? 9 : zero);
    }
    EXPECT_EQ(down->matrix.integers.zero_offset, file == format::IntegerFile::gptq ? 1 : 0);
    const Toy toy = down_probe(down);
    for (const Backend* backend : fitting(toy.spec)) {
      const Output out = run(*backend, toy, one_hot(32));
      EXPECT_EQ(out.experts[0], 1.0f) << backend->name;
      EXPECT_EQ(out.experts[1], 4.5f) << backend->name;
      EXPECT_EQ(out.experts[2], -3.0f) << backend->name;
    }
  }
}

/// A view of dense numbers, as they are or of the transpose.
LoraMatrix lora_matrix(const std::vector<float>& values, std::int64_t rows, std::int64_t cols,
                       bool transposed = false) {
  return {.data = reinterpret_cast<const std::byte*>(values.data()),
          .dtype = DType::f32,
          .rows = rows,
          .cols = cols,
          .row_stride = (transposed ? 1 : cols) * 4,
          .col_stride = (transposed ? rows : 1) * 4};
}

TEST(Reports, B111_TheDeltaSeesTheInputAndNotItsCodes) {
  std::vector<float> a(128), b(128);
  a[0] = 0.5f;
  b[0] = 2;
  for (const Format format : all_formats()) {
    LayerSpec spec = spec_of(format, kSilu);
    spec.routed.lora_rank = 1;
    const Toy toy = make(spec, {linear_expert(0)});  // base weight 0
    LoraAdapter adapter;
    adapter.routed.resize(1);
    adapter.routed[0].up = {.a = lora_matrix(a, 1, 128), .b = lora_matrix(b, 128, 1), .scale = 1};
    const LoraAdapter* const adapters[] = {&adapter};
    Call call = linear_call({1, 100, 100});
    call.adapters = adapters;
    call.adapter_ids = {0, 0, -1};
    for (const Backend* backend : fitting(spec)) {
      const Output out = run(*backend, toy, call);
      EXPECT_TRUE(near(out.experts[0], 1)) << backend->name << ", " << format.str();
      EXPECT_TRUE(near(out.experts[128], 100)) << backend->name << ", " << format.str();
      EXPECT_EQ(out.experts[256], 0) << backend->name << ", " << format.str();
    }
  }
}

/// E = 2, H = 4, I = 3, rank 1, in both orders of memory.
void expect_small_delta() {
  const Expert base{.gate = {{0, 0, 1}, {1, 1, 1}, {2, 2, 1}},
                    .up = {{0, 3, 1}, {1, 0, 1}, {2, 1, 1}},
                    .down = {{0, 0, 1}, {1, 1, 1}, {2, 2, 1}, {3, 0, 1}}};
  LayerSpec spec = spec_of(kBf16, kSilu, {}, {.hidden = 4, .intermediate = 3, .experts = 2});
  spec.routed.lora_rank = 1;
  const Toy toy = make(spec, {base, base});
  const std::vector<float> a{2, 3, 5, 7}, b{11, 13, 17}, x{0.5f, -0.25f, 0.125f, 0.375f};
  double ax = 0;
  for (std::size_t k = 0; k < 4; ++k) ax += double{a[k]} * double{x[k]};
  for (const bool transposed : {false, true}) {
    LoraAdapter adapter;
    adapter.routed.resize(2);
    adapter.routed[1].up = {
        .a = lora_matrix(a, 1, 4, transposed), .b = lora_matrix(b, 3, 1, transposed), .scale = 0.25f};
    const LoraAdapter* const adapters[] = {&adapter};
    Call on{.tokens = 2, .hidden = x, .ids = {0, 1}, .adapters = adapters, .adapter_ids = {0, 0}};
    on.hidden.insert(on.hidden.end(), x.begin(), x.end());
    Call off = on;
    off.adapters = {};
    off.adapter_ids = {};
    for (const Backend* backend : fitting(spec)) {
      const Output with = run(*backend, toy, on), without = run(*backend, toy, off);
      for (std::size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(with.experts[i], without.experts[i]) << backend->name << ": expert 0 has no delta";
        const std::size_t j = i % 3;
        const double silu = double{x[j]} / (1 + std::exp(-double{x[j]}));
        EXPECT_NEAR(with.experts[4 + i] - without.experts[4 + i], silu * 0.25 * double{b[j]} * ax, 1e-6)
            << backend->name;
      }
    }
  }
}

/// Numbers of a tensor that are different in every place.
std::vector<float> numbers(std::int64_t count, int seed) {
  std::vector<float> made;
  for (std::int64_t i = 0; i < count; ++i)
    made.push_back(static_cast<float>((i * 7919 + seed * 104'729) % 2003 - 1001) / 8192);
  return made;
}

/// PEFT's adapter of a stack [E, in, out] (gpt-oss): delta[e][i][o] = sum over r of B[o, r E + e] A[e R + r,
/// i].
double delta_of(const std::vector<float>& a, const std::vector<float>& b,
                const std::vector<std::int64_t>& at) {
  constexpr std::int64_t kRank = 3, kExperts = 4;
  const std::int64_t e = at[0], i = at[1], o = at[2], in = std::ssize(a) / (kRank * kExperts);
  double sum = 0;
  for (std::int64_t r = 0; r < kRank; ++r)
    sum += double{b[static_cast<std::size_t>(o * kRank * kExperts + r * kExperts + e)]} *
           double{a[static_cast<std::size_t>((e * kRank + r) * in + i)]};
  return 2 * sum;  // alpha 6, rank 3
}

TEST(Reports, B112_AnAdapterOfStacksIsNeitherTransposedNorIgnored) {
  expect_small_delta();
  const Edited model(fixture("gpt_oss_bf16"));  // 4 experts, hidden 64, intermediate 96
  const std::vector<float> a = numbers(12 * 64, 1), b = numbers(192 * 12, 2);
  const auto write = [&](const std::filesystem::path& at, const std::string& module) {
    std::filesystem::create_directories(at);
    testing::write_file(at / "adapter_config.json",
                        R"({"peft_type": "LORA", "peft_version": "0.19.1", "r": 3, "lora_alpha": 6,
                            "target_parameters": ["mlp.experts.gate_up_proj"]})");
    const std::vector<testing::NamedTensor> tensors{
        testing::tensor_of<float>("base_model.model." + module + ".lora_A.weight", DType::f32, {12, 64}, a),
        testing::tensor_of<float>("base_model.model." + module + ".lora_B.weight", DType::f32, {192, 12}, b)};
    testing::write_safetensors((at / "adapter_model.safetensors").string(), tensors);
  };
  const testing::TemporaryDirectory directory;
  write(directory.path() / "good", "model.layers.0.mlp.experts");
  const LoraAdapter adapter = Lora::open(directory.file("good"), *model).adapter(0);
  // The merged layer in float32, made without the library's views of the adapter.
  Toy adapted{.spec = model->spec(0), .weights = model->weights(0)};
  adapted.spec.routed.lora_rank = 3;
  Toy merged = adapted;
  const Format f32 = Formats::of<format::F32>();
  merged.spec.routed.formats = {.gate = f32, .up = f32, .down = f32};
  for (std::size_t e = 0; e < 4; ++e) {
    ExpertWeights& expert = merged.weights.routed[e];
    const auto merge = [&](WeightMatrix& matrix, std::int64_t half) {
      std::vector<float> all(static_cast<std::size_t>(matrix.rows * matrix.cols));
      for (std::int64_t r = 0; r < matrix.rows; ++r) {
        float* row = all.data() + r * matrix.cols;
        decode_row(matrix, r, row);
        for (std::int64_t c = 0; half >= 0 && c < matrix.cols; ++c)
          row[c] += static_cast<float>(delta_of(a, b, {static_cast<std::int64_t>(e), c, 2 * r + half}));
      }
      const auto made = shared(encode(f32, all.data(), matrix.rows, matrix.cols));
      keep(merged, made);
      matrix = made->matrix;
    };
    merge(*expert.gate, 0);
    merge(expert.up, 1);
    merge(expert.down, -1);
  }
  const LoraAdapter* const adapters[] = {&adapter};
  const Call off = draw_call(adapted.spec, 5, 6);
  Call on = off;
  on.adapters = adapters;
  on.adapter_ids.assign(5, 0);
  for (const Backend* backend : fitting(adapted.spec)) {
    const std::vector<float> with = run(*backend, adapted, on).experts;
    EXPECT_LT(rel_l2(with, run(*backend, merged, off).experts), 1e-5) << backend->name;
    EXPECT_GT(rel_l2(with, run(*backend, adapted, off).experts), 1e-2) << backend->name;
  }
  write(directory.path() / "nowhere", "model.layers.0.mlp.experts.0.k_proj");
  EXPECT_EQ(refused([&] { (void)Lora::open(directory.file("nowhere"), *model); }, {"k_proj"}),
            "unused_tensor");
}

}  // namespace
}  // namespace sluice::reports
