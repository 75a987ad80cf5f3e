// SPDX-License-Identifier: Apache-2.0
// Every kind of finding, provoked by an edit of a model that has none of it; and models without findings.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "core/bits.h"
#include "format/formats.h"
#include "lint/facts.h"
#include "sluice/error.h"
#include "sluice/lint.h"
#include "testing/sample.h"
#include "tests/checkpoint/editable_model.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using testing::EditableModel;
using testing::NamedTensor;
using testing::TemporaryDirectory;

LintReport lint_of(const fs::path& directory) {
  const auto threads = make_thread_team(2);
  return lint(Checkpoint::open(directory.string()), *threads);
}

LintReport lint_of(const EditableModel& model) {
  const TemporaryDirectory directory;
  model.write(directory.path());
  return lint_of(directory.path());
}

std::string text_of(const LintReport& report) {
  std::string text;
  for (const Finding& one : report.findings)
    text += std::string(name(one.severity)) + " " + one.code + " " + one.matrix + ": " + one.what + "\n";
  return text;
}

void each_byte(NamedTensor& tensor, const std::function<unsigned(unsigned)>& change) {
  for (std::byte& byte : tensor.bytes) byte = static_cast<std::byte>(change(static_cast<unsigned>(byte)));
}

float number(EditableModel& model, const std::string& name) {
  return load<float>(model.tensor(name).bytes.data());
}

void copy(EditableModel& model, const std::string& from, const std::string& to) {
  for (auto& [file, tensors] : model.files)
    for (NamedTensor& tensor : tensors)
      if (tensor.name.starts_with(from))
        model.tensor(to + tensor.name.substr(from.size())).bytes = tensor.bytes;
}

const std::string kDeepseek = "layers.1.ffn.experts.1.", kQwen = "model.layers.0.mlp.experts.1.",
                  kMixtral = "model.layers.0.block_sparse_moe.experts.1.",
                  kGptOss = "model.layers.0.mlp.experts.";

/// A GPTQ model whose zero points count.
void asymmetric(EditableModel& m) { EditableModel::replace(m.config, "\"sym\": true", "\"sym\": false"); }

struct Provoked {
  const char* name;
  const char* fixture;
  std::function<void(EditableModel&)> edit;
  Severity severity;
  const char* code;
  const char* matrix;
  std::vector<int> experts;
  const char* says;
};

const Severity kError = Severity::error, kWarning = Severity::warning, kNote = Severity::note;

// clang-format off
const Provoked kProvoked[] = {
    {"nan_scale", "deepseek_v4_nvfp4", [](auto& m) { m.set(kDeepseek + "w1.weight_scale", 17, std::uint8_t{0x7F}); },
     kError, "scale_nan", "gate", {1}, "1 of 2048 scales are NaN, the first at row 1, group 1"},
    {"zero_scale", "deepseek_v4_nvfp4", [](auto& m) { m.set(kDeepseek + "w2.weight_scale", 3, std::uint8_t{0}); },
     kError, "scale_zero", "down", {1}, "row 0, group 3"},
    {"negative_scale", "deepseek_v4_nvfp4", [](auto& m) { m.set(kDeepseek + "w3.weight_scale", 3, std::uint8_t{0xB8}); },
     kError, "scale_negative", "up", {1}, "1 of 2048 scales are negative"},
    {"infinite_scale", "mixtral_gptq", [](auto& m) { m.set(kMixtral + "w1.scales", 3, std::uint16_t{0x7C00}); },
     kError, "scale_infinite", "gate", {1}, "row 3, group 0"},
    {"byte_255", "gpt_oss_mxfp4", [](auto& m) { m.set(kGptOss + "gate_up_proj_scales", 2 * 576 * 9 + 9, std::uint8_t{255}); },
     kError, "scale_e8m0_nan", "up", {2}, "byte 255"},
    {"two_experts_one_line", "deepseek_v4_nvfp4", [](auto& m) {
       m.set(kDeepseek + "w1.weight_scale", 17, std::uint8_t{0x7F});
       m.set("layers.1.ffn.experts.4.w1.weight_scale", 1, std::uint8_t{0x7F}); },
     kError, "scale_nan", "gate", {1, 4}, "2 of 4096"},
    {"scale_at_the_end", "gpt_oss_mxfp4", [](auto& m) { m.set(kGptOss + "down_proj_scales", 0, std::uint8_t{254}); },
     kWarning, "scale_at_format_end", "down", {0}, "1 are 2^127"},
    {"nan_code", "qwen3_moe_fp8_block", [](auto& m) { m.set(kQwen + "gate_proj.weight", 5, std::uint8_t{0xFF}); },
     kError, "weight_not_finite", "gate", {1}, "weights are NaN or infinite"},
    {"nan_weight", "mixtral_bf16", [](auto& m) { m.set(kMixtral + "w2.weight", 700, std::uint16_t{0x7FC1}); },
     kError, "weight_not_finite", "down", {1}, "1 of 32768"},
    {"infinite_weight", "mixtral_bf16", [](auto& m) { m.set(kMixtral + "w2.weight", 32767, std::uint16_t{0xFF80}); },
     kError, "weight_not_finite", "down", {1}, "1 of 32768"},
    {"denormal_weight", "mixtral_bf16", [](auto& m) { m.set(kMixtral + "w2.weight", 700, std::uint16_t{0x8001}); },
     kNote, "denormal", "down", {1}, "1 of 32768"},
    {"zero_matrix", "mixtral_bf16", [](auto& m) { each_byte(m.tensor(kMixtral + "w3.weight"), [](unsigned) { return 0u; }); },
     kWarning, "all_zero", "up", {1}, "all weights are zero"},
    {"zero_codes_of_either_sign", "qwen3_moe_ct_mxfp4", [](auto& m) { each_byte(m.tensor(kQwen + "up_proj.weight_packed"), [](unsigned b) { return b & 0x88u; }); },
     kWarning, "all_zero", "up", {1}, "all weights are zero"},
    {"one_code", "qwen3_moe_ct_mxfp4", [](auto& m) { each_byte(m.tensor(kQwen + "up_proj.weight_packed"), [](unsigned) { return 0x33u; }); },
     kWarning, "one_code", "up", {1}, "all codes are the same"},
    {"equal_experts", "mixtral_bf16", [](auto& m) { copy(m, kMixtral, "model.layers.0.block_sparse_moe.experts.3."); },
     kWarning, "duplicate_experts", "", {1, 3}, "experts 1, 3 are the same byte for byte"},
    {"equal_experts_of_integers", "mixtral_gptq_act_order", [](auto& m) { copy(m, kMixtral, "model.layers.0.block_sparse_moe.experts.0."); },
     kWarning, "duplicate_experts", "", {0, 1}, "experts 0, 1"},
    {"equal_down_only", "mixtral_bf16", [](auto& m) { copy(m, kMixtral + "w2.", "model.layers.0.block_sparse_moe.experts.2.w2."); },
     kWarning, "duplicate_matrices", "down", {1, 2}, "experts 1, 2"},
    {"top_codes_unused", "qwen3_moe_ct_mxfp4", [](auto& m) { each_byte(m.tensor(kQwen + "up_proj.weight_packed"), [](unsigned b) { return b & 0xBBu; }); },
     kWarning, "top_codes_unused", "up", {1}, "the largest code in use is 1.5, of 6"},
    {"top_codes_unused_of_fp8", "qwen3_moe_fp8_block", [](auto& m) { each_byte(m.tensor(kQwen + "up_proj.weight"), [](unsigned b) { return (b & 0x80u) | (b & 0x7Fu) / 2; }); },
     kWarning, "top_codes_unused", "up", {1}, "of 448"},
    {"saturated", "qwen3_moe_ct_mxfp4", [](auto& m) { each_byte(m.tensor(kQwen + "up_proj.weight_packed"), [](unsigned b) { return b | 0x07u; }); },
     kWarning, "many_saturated", "up", {1}, "weights were cut off"},
    {"B36_gate_and_up_differ", "deepseek_v4_nvfp4", [](auto& m) { m.set(kDeepseek + "w1.weight_scale_2", 0, number(m, kDeepseek + "w3.weight_scale_2") * 4); },
     kNote, "second_scales_differ", "gate", {}, "by up to 4"},
    {"gate_and_up_far_apart", "deepseek_v4_nvfp4", [](auto& m) { m.set(kDeepseek + "w1.weight_scale_2", 0, number(m, kDeepseek + "w3.weight_scale_2") * 32); },
     kWarning, "second_scales_differ", "gate", {}, "by up to 32 times (expert 1)"},
    {"factor_read_as_divider", "qwen3_moe_ct_nvfp4", [](auto& m) { m.set(kQwen + "up_proj.weight_global_scale", 0, 1 / number(m, kQwen + "up_proj.weight_global_scale")); },
     kError, "second_scale_above_one", "up", {1}, "acts as a factor of"},
    {"divider_read_as_factor", "deepseek_v4_nvfp4", [](auto& m) { m.set(kDeepseek + "w3.weight_scale_2", 0, 1 / number(m, kDeepseek + "w3.weight_scale_2")); },
     kError, "second_scale_above_one", "up", {1}, "acts as a factor of"},
    {"B46_second_scale_absent", "deepseek_v4_nvfp4", [](auto& m) { m.set(kDeepseek + "w2.weight_scale_2", 0, 1.0f); },
     kWarning, "second_scale_above_one", "down", {1}, "a factor of 1,"},
    {"B46_second_scale_applied_twice", "deepseek_v4_nvfp4", [](auto& m) { const float once = number(m, kDeepseek + "w2.weight_scale_2"); m.set(kDeepseek + "w2.weight_scale_2", 0, once * once); },
     kWarning, "expert_unlike_others", "down", {1}, "of the layer's other experts"},
    {"B48_merged_second_scales", "deepseek_v4_nvfp4", [](auto& m) { m.set("layers.1.ffn.experts.2.w1.weight_scale_2", 0, number(m, kDeepseek + "w1.weight_scale_2")); },
     kWarning, "second_scale_merged", "gate", {1, 2}, "experts 1, 2 share the second scale"},
    {"B48_block_scales_low", "deepseek_v4_nvfp4", [](auto& m) { each_byte(m.tensor(kDeepseek + "w1.weight_scale"), [](unsigned b) { return std::max(b, 0x31u) - 0x30u; }); },
     kNote, "block_scales_low", "gate", {1}, "reach only 7 of 448"},
    {"matrices_far_apart", "gpt_oss_mxfp4", [](auto& m) { each_byte(m.tensor(kGptOss + "down_proj_scales"), [](unsigned b) { return b - 12; }); },
     kWarning, "matrices_far_apart", "down", {}, "of up 2^"},
    {"B80_router_of_zeros", "mixtral_bf16", [](auto& m) { each_byte(m.tensor("model.layers.0.block_sparse_moe.gate.weight"), [](unsigned) { return 0u; }); },
     kWarning, "router_all_zero", "router", {}, "every token goes to the first experts"},
    {"B80_router_not_finite", "mixtral_bf16", [](auto& m) { m.set("model.layers.0.block_sparse_moe.gate.weight", 9, std::uint16_t{0x7F80}); },
     kError, "router_not_finite", "router", {}, "1 of 1024"},
    {"router_row_of_zeros", "mixtral_bf16", [](auto& m) { for (std::size_t c = 0; c < 256; ++c) m.set("model.layers.0.block_sparse_moe.gate.weight", 512 + c, std::uint16_t{0}); },
     kWarning, "router_row_zero", "router", {}, "experts 2 are zero"},
    {"nan_in_a_bias", "gpt_oss_mxfp4", [](auto& m) { m.set(kGptOss + "gate_up_proj_bias", 3 * 576 + 4, std::uint16_t{0x7FC0}); },
     kError, "vector_not_finite", "gate bias", {3}, "1 of 288"},
    {"nan_in_the_routers_bias", "gpt_oss_mxfp4", [](auto& m) { m.set("model.layers.0.mlp.router.bias", 1, std::uint16_t{0x7FC0}); },
     kError, "vector_not_finite", "router bias", {}, "1 of 8"},
    {"zero_points_all_the_same", "mixtral_gptq", asymmetric,
     kNote, "zero_points_same", "gate", {0, 1, 2, 3}, "all zero points are 8, the middle"},
    {"zero_point_that_wraps", "mixtral_gptq", [](auto& m) { asymmetric(m); m.set(kMixtral + "w1.qzeros", 0, std::uint32_t{0x7777777F}); },
     kWarning, "zero_point_wraps", "gate", {1}, "1 of 512 stored zero points are 15"},
    {"zero_point_of_a_symmetric_matrix", "mixtral_gptq", [](auto& m) { m.set(kMixtral + "w1.qzeros", 0, std::uint32_t{0x77777776}); },
     kError, "zero_point_not_symmetric", "", {}, "row 0, group 0"},
    {"group_that_is_not_there", "mixtral_gptq_act_order", [](auto& m) { m.set(kMixtral + "w1.g_idx", 7, std::int32_t{4}); },
     kError, "bad_column_group", "", {}, "column 7 is in group 4, there are 4"},
    {"groups_unbalanced", "mixtral_gptq_act_order", [](auto& m) { for (std::size_t c = 0; c < 256; ++c) m.set(kMixtral + "w1.g_idx", c, static_cast<std::int32_t>(c < 96 ? 0 : c < 128 ? 1 : c / 64)); },
     kWarning, "groups_unbalanced", "gate", {1}, "32 to 96 columns, the group size is 64"},
    {"expert_that_is_not_there", "deepseek_v4_nvfp4", [](auto& m) { m.set("layers.0.ffn.gate.tid2eid", 4, std::int64_t{99}); },
     kError, "bad_expert_id", "", {}, "token 1 goes to expert 99"},
};
// clang-format on

class Provoke : public ::testing::TestWithParam<Provoked> {};

TEST_P(Provoke, IsFound) {
  const Provoked& wanted = GetParam();
  EditableModel model = EditableModel::of(wanted.fixture);
  wanted.edit(model);
  const LintReport report = lint_of(model);
  const auto found = std::find_if(report.findings.begin(), report.findings.end(), [&](const Finding& one) {
    return one.code == wanted.code && one.severity == wanted.severity && one.matrix == wanted.matrix &&
           (wanted.experts.empty() || one.experts == wanted.experts) &&
           one.what.find(wanted.says) != std::string::npos;
  });
  ASSERT_NE(found, report.findings.end()) << text_of(report);
  EXPECT_FALSE(found->todo.empty());
}

INSTANTIATE_TEST_SUITE_P(All, Provoke, ::testing::ValuesIn(kProvoked),
                         [](const auto& one) { return std::string(one.param.name); });

/// Loading refuses what lint calls an error among scales, and by the same code.
TEST(Lint, AgreesWithLoadingAboutScales) {
  for (const Provoked& one : kProvoked) {
    if (!std::string_view(one.code).starts_with("scale_") || one.severity != kError) continue;
    SCOPED_TRACE(one.name);
    EditableModel model = EditableModel::of(one.fixture);
    one.edit(model);
    const TemporaryDirectory directory;
    model.write(directory.path());
    const Checkpoint opened = Checkpoint::open(directory.path().string());
    std::string code;
    for (const int layer : opened.info().moe_layers) try {
        static_cast<void>(opened.weights(layer));
      } catch (const Error& error) {
        code = error.info().code;
      }
    EXPECT_EQ(code, one.code);
  }
}

TEST(Lint, NamesFileAndTensor) {
  EditableModel model = EditableModel::of("deepseek_v4_nvfp4");
  model.set(kDeepseek + "w1.weight_scale", 17, std::uint8_t{0x7F});
  const LintReport report = lint_of(model);
  ASSERT_EQ(report.count(kError), 1) << text_of(report);
  const Finding& found = *std::find_if(report.findings.begin(), report.findings.end(),
                                       [](const Finding& one) { return one.severity == kError; });
  EXPECT_EQ(found.tensor, kDeepseek + "w1.weight_scale");
  EXPECT_NE(found.file.find("model-00002-of-00003.safetensors"), std::string::npos) << found.file;
  EXPECT_EQ(found.layer, 1);
  EXPECT_EQ(found.numbers.front(), (std::pair<std::string, double>{"count", 1}));
}

TEST(Lint, LayerUnlikeTheOthers) {
  EditableModel model = EditableModel::read(fs::path(SLUICE_SOURCE_DIR) / "models/tiny-gpt-oss-mxfp4");
  for (const char* name : {"gate_up_proj_scales", "down_proj_scales"})
    each_byte(model.tensor(std::string("model.layers.2.mlp.experts.") + name),
              [](unsigned b) { return b - 8; });
  const LintReport report = lint_of(model);
  for (const char* matrix : {"gate", "up", "down"})
    EXPECT_TRUE(std::any_of(report.findings.begin(), report.findings.end(), [&](const Finding& one) {
      return one.code == "layer_unlike_others" && one.layer == 2 && one.matrix == matrix;
    })) << text_of(report);
}

TEST(Lint, RangesAreThoseOfTheScales) {
  EditableModel model = EditableModel::of("gpt_oss_mxfp4");
  NamedTensor& scales = model.tensor(kGptOss + "down_proj_scales");
  each_byte(scales, [](unsigned) { return 120u; });
  scales.bytes[0] = std::byte{100};
  scales.bytes[1] = std::byte{130};
  const LintReport report = lint_of(model);
  const auto range = std::find_if(report.ranges.begin(), report.ranges.end(), [](const MatrixRange& one) {
    return one.layer == 0 && one.matrix == "down";
  });
  ASSERT_NE(range, report.ranges.end());
  EXPECT_EQ(range->smallest_scale, std::ldexp(1.0f, -27));
  EXPECT_EQ(range->largest_scale, 8.0f);
  EXPECT_EQ(range->scales, static_cast<std::int64_t>(scales.bytes.size()));
  EXPECT_EQ(range->scale_type, "F8_E8M0");
  EXPECT_EQ(range->storage, "mxfp4");
}

/// Bits below a byte and lines across words: 3 bits take the slow path, 4 and 8 the fast one.
TEST(Lint, CountsCodesOfEveryWidth) {
  for (const char* fixture : {"qwen3_moe_ct_int3", "qwen3_moe_ct_int4_asym", "mixtral_awq", "mixtral_gptq"}) {
    const fs::path path = fs::path(SLUICE_SOURCE_DIR) / "tests/data/fixtures" / fixture;
    if (!fs::exists(path)) continue;
    const LintReport report = lint_of(path);
    const Checkpoint model = Checkpoint::open(path.string());
    for (const MatrixRange& range : report.ranges) {
      const LayerSpec spec = model.spec(range.layer);
      EXPECT_EQ(range.weights,
                std::int64_t{spec.routed.experts} * spec.routed.hidden * spec.routed.intermediate);
      EXPECT_GT(range.zero_share, 0) << fixture;
      EXPECT_LT(range.zero_share, 0.5) << fixture;
    }
  }
}

/// Against codes read one by one, for every width and packing, with lines that end within words.
TEST(Facts, CodesAreCountedInEveryPacking) {
  for (int bits = 2; bits <= 8; ++bits)
    for (const auto file : {format::IntegerFile::rows, format::IntegerFile::padded_rows,
                            format::IntegerFile::gptq, format::IntegerFile::awq})
      for (const std::int64_t cols : {64, 96, 83}) {
        const Format stored = *Format::parse("int" + std::to_string(bits));
        const format::IntegerRecipe recipe{.grouping = {.columns = 32}, .file = file};
        if (!format::can_lay_out(stored, recipe, 32, cols)) continue;
        std::vector<float> values(static_cast<std::size_t>(32 * cols));
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * 7919 % 257) - 128;
        const format::Encoded encoded = format::encode_integers(stored, recipe, {values.data(), 32, cols});
        std::array<std::int64_t, 256> wanted = {};
        std::vector<std::uint8_t> row(static_cast<std::size_t>(cols));
        for (std::int64_t r = 0; r < 32; ++r) {
          format::codes_of_row(encoded.matrix, r, row.data());
          for (const std::uint8_t code : row) ++wanted[code];
        }
        EXPECT_EQ(linting::look_at(encoded.matrix).codes, wanted)
            << bits << " bits, file " << static_cast<int>(file) << ", " << cols << " columns";
      }
}

/// Rows, columns, and columns that take turns, against numbers read one by one.
TEST(Facts, PlainNumbersAreCountedAtAnyStrides) {
  constexpr std::int64_t kRows = 300, kCols = 70;
  std::vector<std::uint16_t> all(2 * kRows * kCols);
  for (std::size_t i = 0; i < all.size(); ++i)
    all[i] = static_cast<std::uint16_t>(i % 3 == 0 ? 0 : 0x3F80 + i % 64);
  all[2 * (5 * kCols + 7)] = 0x7F80;
  struct Strides {
    std::ptrdiff_t row, col;
  };
  for (const auto& [row, col] : {Strides{2 * kCols, 2}, Strides{4 * kCols, 2}, Strides{2, 2 * kRows},
                                 Strides{4, 4 * kRows}, Strides{4 * kCols, 4}}) {
    const WeightMatrix matrix{.format = *Format::parse("bf16"),
                              .rows = kRows,
                              .cols = kCols,
                              .codes = reinterpret_cast<const std::byte*>(all.data()),
                              .row_stride = row,
                              .col_stride = col};
    std::int64_t zeros = 0, bad = 0;
    std::vector<float> values(kCols);
    for (std::int64_t r = 0; r < kRows; ++r) {
      decode_row(matrix, r, values.data());
      for (const float value : values) zeros += value == 0, bad += !std::isfinite(value);
    }
    const linting::Facts facts = linting::look_at(matrix);
    EXPECT_EQ(facts.zeros, zeros) << row << " " << col;
    EXPECT_EQ(facts.not_finite, bad) << row << " " << col;
    EXPECT_NEAR(facts.magnitude(matrix), 0.35, 0.2);
  }
}

TEST(Lint, CleanFixturesHaveNoErrorAndNoWarning) {
  int models = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(SLUICE_SOURCE_DIR) / "tests/data/fixtures")) {
    if (!entry.is_directory()) continue;
    ++models;
    const LintReport report = lint_of(entry.path());
    EXPECT_EQ(report.count(kError) + report.count(kWarning), 0) << entry.path() << "\n" << text_of(report);
    EXPECT_GT(report.bytes, 0);
  }
  EXPECT_GE(models, 10);
}

TEST(Lint, CleanSamplesHaveNoErrorAndNoWarning) {
  for (const std::string_view family : testing::sample_families()) {
    const LintReport report = lint_of(EditableModel::of_sample(family));
    EXPECT_EQ(report.count(kError) + report.count(kWarning), 0) << family << "\n" << text_of(report);
  }
}

/// The projections and the norm around latent experts are looked at, in whatever format they are.
TEST(Lint, LatentProjections) {
  const std::string block = "language_model.model.layers.1.block_sparse_moe.";
  const auto found = [&](const auto& edit, std::string_view code, std::string_view matrix) {
    EditableModel model = EditableModel::of_sample("kimi-k3");
    edit(model);
    const LintReport report = lint_of(model);
    EXPECT_TRUE(std::ranges::any_of(
        report.findings,
        [&](const Finding& one) { return one.code == code && one.matrix == matrix && one.layer == 1; }))
        << code << "\n"
        << text_of(report);
  };
  found([&](auto& m) { m.set(block + "routed_expert_down_proj.weight", 9, std::uint16_t{0x7F80}); },
        "projection_not_finite", "projection before the experts");
  found(
      [&](auto& m) {
        each_byte(m.tensor(block + "routed_expert_up_proj.weight"), [](unsigned) { return 0u; });
      },
      "projection_all_zero", "projection behind the experts");
  found([&](auto& m) { m.set(block + "routed_expert_norm.weight", 3, std::uint16_t{0x7FC0}); },
        "vector_not_finite", "norm of the experts' sum");
}

TEST(Lint, ProgressEndsAtTheTotal) {
  const auto threads = make_thread_team(2);
  std::int64_t last = 0, all = 0;
  const LintReport report =
      lint(Checkpoint::open(std::string(SLUICE_SOURCE_DIR) + "/models/tiny-gpt-oss-mxfp4"), *threads,
           [&](std::int64_t done, std::int64_t total) {
             EXPECT_GE(done, last);
             last = done;
             all = total;
           });
  EXPECT_EQ(all, report.bytes);
  EXPECT_GT(last, all * 9 / 10);
}

}  // namespace
}  // namespace sluice
