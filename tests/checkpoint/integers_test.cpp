// SPDX-License-Identifier: Apache-2.0
// The spellings of integer checkpoints: each fixture rewritten as another version, packing or method stores
// the same numbers must decode to the same numbers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "checkpoint/config.h"
#include "corruption.h"
#include "format/bf16.h"
#include "format/formats.h"
#include "sluice/checkpoint.h"

namespace sluice {
namespace {

using format::IntegerFile;
using testing::EditableModel;
using testing::NamedTensor;
using Edit = std::function<void(EditableModel&)>;

/// Every weight of the layer, gate, up and down of one expert after the other.
using Weights = std::vector<std::vector<double>>;

std::vector<double> decoded(const WeightMatrix& matrix) {
  std::vector<double> values(static_cast<std::size_t>(matrix.rows * matrix.cols));
  for (std::int64_t r = 0; r < matrix.rows; ++r) decode_row(matrix, r, values.data() + r * matrix.cols);
  return values;
}

struct Read {
  MatrixFormats formats;
  std::string quantisation;
  Weights weights;
};

Read read(
    const char* fixture, const Edit& edit = [](EditableModel&) {}) {
  EditableModel model = EditableModel::of(fixture);
  edit(model);
  const testing::TemporaryDirectory directory;
  model.write(directory.path());
  const Checkpoint opened = Checkpoint::open(directory.path().string());
  const LayerSpec spec = opened.spec(0);
  const LayerWeights weights = opened.weights(0);
  validate(spec, weights);
  Read read{spec.routed.formats, opened.info().quantisation, {}};
  for (const ExpertWeights& expert : weights.routed)
    for (const WeightMatrix& matrix : {*expert.gate, expert.up, expert.down})
      read.weights.push_back(decoded(matrix));
  return read;
}

/// Calls `change` for every tensor whose name ends so.
void each(EditableModel& m, std::string_view suffix, const std::function<void(NamedTensor&)>& change) {
  int found = 0;
  for (auto& [file, tensors] : m.files)
    for (NamedTensor& tensor : tensors)
      if (tensor.name.ends_with(suffix)) {
        change(tensor);
        ++found;
      }
  EXPECT_GT(found, 0) << suffix;
}

template <class T>
std::vector<T> numbers(const NamedTensor& tensor) {
  std::vector<T> all(tensor.bytes.size() / sizeof(T));
  std::memcpy(all.data(), tensor.bytes.data(), tensor.bytes.size());
  return all;
}

template <class T>
void put(NamedTensor& tensor, const std::vector<T>& numbers, std::vector<std::int64_t> shape) {
  tensor.bytes.resize(numbers.size() * sizeof(T));
  std::memcpy(tensor.bytes.data(), numbers.data(), tensor.bytes.size());
  tensor.shape = std::move(shape);
}

/// Adds one to every zero point: no nibble of the fixture's is 15.
void store_true_zeros(EditableModel& m) {
  each(m, ".qzeros", [](NamedTensor& tensor) {
    auto words = numbers<std::uint32_t>(tensor);
    for (std::uint32_t& word : words) word += 0x11111111u;
    put(tensor, words, tensor.shape);
  });
}

TEST(GptqVersions, V2StoresTheZeroPointItself) {
  const Read v2 = read(testing::kGptq, [](EditableModel& m) {
    m.in_config("\"checkpoint_format\": \"gptq\"", "\"checkpoint_format\": \"gptq_v2\"");
    store_true_zeros(m);
  });
  EXPECT_EQ(v2.weights, read(testing::kGptq).weights);
  EXPECT_EQ(v2.quantisation, "gptq int4 g64");
}

TEST(GptqVersions, WithoutSymTheZeroPointsAreReadAsTheyAre) {
  for (const char* sym : {"\"sym\": false", "\"other\": 0"}) {
    const Read asymmetric =
        read(testing::kGptq, [&](EditableModel& m) { m.in_config("\"sym\": true", sym); });
    EXPECT_EQ(storage_text(asymmetric.formats), "int4 g64, zero points");
    EXPECT_EQ(asymmetric.weights, read(testing::kGptq).weights);
  }
  // And another zero point moves the group's weights by steps of its scale.
  const Read moved = read(testing::kGptq, [](EditableModel& m) {
    m.in_config("\"sym\": true", "\"sym\": false");
    m.set<std::uint32_t>("model.layers.0.block_sparse_moe.experts.0.w1.qzeros", 0, 0x77777773);
  });
  const Weights before = read(testing::kGptq).weights;
  EXPECT_NE(moved.weights[0][0], before[0][0]);
  EXPECT_EQ(moved.weights[0][64], before[0][64]) << "the next group";
  EXPECT_EQ(moved.weights[0][256], before[0][256]) << "the next row";
}

TEST(GptqVersions, TheFormatMayBeLeftOutAndIsV1) {
  const Read absent =
      read(testing::kGptq, [](EditableModel& m) { m.in_config(",\n  \"checkpoint_format\": \"gptq\"", ""); });
  EXPECT_EQ(absent.weights, read(testing::kGptq).weights);
}

TEST(GptqVersions, AListOfColumnsInOrderMayBeLeftOut) {
  const Read absent = read(testing::kGptq, [](EditableModel& m) {
    for (auto& [file, tensors] : m.files)
      std::erase_if(tensors, [](const NamedTensor& tensor) { return tensor.name.ends_with(".g_idx"); });
  });
  EXPECT_EQ(absent.weights, read(testing::kGptq).weights);
}

TEST(AutoRound, IsGptqOrAwqUnderAnotherName) {
  const auto named = [](const char* packing) {
    return [packing](EditableModel& m) {
      m.in_config("\"quant_method\": \"gptq\"",
                  "\"quant_method\": \"auto-round\", \"packing_format\": \"" + std::string(packing) + "\"");
    };
  };
  const Weights gptq = read(testing::kGptq).weights;
  const Read like_gptq = read(testing::kGptq, named("auto_round:auto_gptq"));
  EXPECT_EQ(like_gptq.weights, gptq);
  EXPECT_EQ(like_gptq.quantisation, "auto_round:auto_gptq gptq int4 g64");
  EXPECT_EQ(read(testing::kGptq,
                 [&](EditableModel& m) {
                   named("auto_round")(m);
                   store_true_zeros(m);
                 })
                .weights,
            gptq);
  EXPECT_EQ(read(testing::kAwq,
                 [](EditableModel& m) {
                   m.in_config("\"quant_method\": \"awq\"",
                               "\"quant_method\": \"intel/auto-round\", \"packing_format\": "
                               "\"auto_round:auto_awq\"");
                 })
                .weights,
            read(testing::kAwq).weights);
}

/// A module's GPTQ tensors, of drawn weights.
void add_gptq(EditableModel& m, const std::string& module, const format::Encoded& encoded) {
  const WeightMatrix& matrix = encoded.matrix;
  const std::int64_t groups = format::groups_of_row(matrix), bits = format::integer_bits(matrix);
  std::vector<std::byte> scales(encoded.scales.size());  // [groups, rows]
  for (std::int64_t r = 0; r < matrix.rows; ++r)
    for (std::int64_t g = 0; g < groups; ++g)
      std::memcpy(scales.data() + 2 * (g * matrix.rows + r), encoded.scales.data() + 2 * (r * groups + g), 2);
  m.add({module + ".qweight", DType::i32, {matrix.cols * bits / 32, matrix.rows}, encoded.codes});
  m.add({module + ".qzeros", DType::i32, {groups, matrix.rows * bits / 32}, encoded.zeros});
  m.add({module + ".scales", DType::bf16, {groups, matrix.rows}, scales});
}

const char* const kMatrices[] = {"w1", "w3", "w2"};

/// Gives expert `e` of the GPTQ fixture other weights, in other bits; what they decode to.
Weights requantise(EditableModel& m, int e, int bits, const Grouping& grouping) {
  Weights want;
  for (const std::string matrix : kMatrices) {
    const std::string module = "model.layers.0.block_sparse_moe.experts." + std::to_string(e) + "." + matrix;
    m.remove_below(module + ".");
    const std::int64_t rows = matrix == "w2" ? 256 : 128, cols = 384 - rows;
    std::vector<float> values;
    for (std::int64_t i = 0; i < rows * cols; ++i)
      values.push_back(static_cast<float>((i * 7919 + e) % 1009) / 1009 - 0.4f);
    const format::Encoded encoded =
        format::encode_integers(*Format::parse("int" + std::to_string(bits)), {grouping, IntegerFile::gptq},
                                {values.data(), rows, cols});
    add_gptq(m, module, encoded);
    want.push_back(decoded(encoded.matrix));
  }
  return want;
}

TEST(Gptq, EveryWidthOfIt) {
  for (const int bits : {2, 3, 4, 8}) {
    Weights want;
    const Read got = read(testing::kGptq, [&](EditableModel& m) {
      m.in_config("\"bits\": 4", "\"bits\": " + std::to_string(bits));
      m.in_config("\"sym\": true", "\"sym\": false");
      m.in_config("\"group_size\": 64", "\"group_size\": 32");
      for (int e = 0; e < 4; ++e)
        for (auto& values : requantise(m, e, bits, {.columns = 32, .zero_points = true}))
          want.push_back(std::move(values));
    });
    EXPECT_EQ(got.weights, want) << bits;
    EXPECT_EQ(got.formats.up.str(), "int" + std::to_string(bits));
  }
}

TEST(Gptq, AGroupOfMinusOneIsTheRow) {
  Weights want;
  const Read got = read(testing::kActOrder, [&](EditableModel& m) {
    m.in_config("\"sym\": true", "\"sym\": false");
    m.in_config("\"group_size\": 64", "\"group_size\": -1");
    for (int e = 0; e < 4; ++e)
      for (auto& values : requantise(m, e, 4, {.zero_points = true})) want.push_back(std::move(values));
  });
  EXPECT_EQ(got.weights, want);
  EXPECT_EQ(storage_text(got.formats), "int4 row, zero points") << "one group has no order";
}

TEST(Gptq, GroupsNeedNotDivideTheRow) {
  Weights want;
  const Read got = read(testing::kGptq, [&](EditableModel& m) {
    m.in_config("\"sym\": true", "\"sym\": false");
    m.in_config("\"group_size\": 64", "\"group_size\": 96");
    for (int e = 0; e < 4; ++e)
      for (auto& values : requantise(m, e, 4, {.columns = 96, .zero_points = true}))
        want.push_back(std::move(values));
  });
  EXPECT_EQ(got.weights, want);
}

/// GPTQModel's overrides: the first expression that matches decides.
TEST(Gptq, OverridesByModule) {
  const Read got = read(testing::kGptq, [&](EditableModel& m) {
    m.in_config(
        "\"sym\": true",
        "\"sym\": false, \"dynamic\": {\"-:.*self_attn.*\": {}, "
        "\"+:.*experts[.][0-3][.]w[123]\": {\"bits\": 8, \"group_size\": 32}, \"-:.*experts.*\": {}}");
    for (int e = 0; e < 4; ++e) requantise(m, e, 8, {.columns = 32, .zero_points = true});
  });
  EXPECT_EQ(storage_text(got.formats), "int8 g32, zero points");
}

/// Replaces all experts by plain BF16 weights of one value.
void make_plain(EditableModel& m) {
  for (int e = 0; e < 4; ++e)
    for (const std::string matrix : kMatrices) {
      const std::string module =
          "model.layers.0.block_sparse_moe.experts." + std::to_string(e) + "." + matrix;
      m.remove_below(module + ".");
      const std::int64_t rows = matrix == "w2" ? 256 : 128;
      const std::vector<std::uint16_t> ones(static_cast<std::size_t>(rows * (384 - rows)), 0x3F80);
      NamedTensor tensor{module + ".weight", DType::bf16, {}, {}};
      put(tensor, ones, {rows, 384 - rows});
      m.add(tensor);
    }
}

TEST(Gptq, ModulesThatWereLeftOutArePlain) {
  for (const char* dynamic : {"", ", \"dynamic\": {\"-:.*experts.*\": {}}"}) {
    const Read got = read(testing::kGptq, [&](EditableModel& m) {
      m.in_config("\"sym\": true", "\"sym\": true" + std::string(dynamic));
      make_plain(m);
    });
    EXPECT_EQ(storage_text(got.formats), "bf16");
  }
}

TEST(AutoRound, ModulesOfTheirOwn) {
  const auto extra = [](const std::string& config) {
    return "\"quant_method\": \"auto-round\", \"packing_format\": \"auto_round:auto_gptq\", "
           "\"extra_config\": {" +
           config + "}";
  };
  const Read plain = read(testing::kGptq, [&](EditableModel& m) {
    m.in_config("\"quant_method\": \"gptq\"", extra("\"experts[.]\\\\d\": {\"bits\": 16}"));
    make_plain(m);
  });
  EXPECT_EQ(storage_text(plain.formats), "bf16") << "an expression may match anywhere";
  const Read wide = read(testing::kGptq, [&](EditableModel& m) {
    std::string modules;
    for (int e = 0; e < 4; ++e)
      for (const std::string matrix : kMatrices)
        modules += "\"model.layers.0.block_sparse_moe.experts." + std::to_string(e) + "." + matrix +
                   "\": {\"bits\": 8, \"sym\": false, \"group_size\": 32}, ";
    m.in_config("\"quant_method\": \"gptq\"", extra(modules + "\".*experts.*\": {\"bits\": 16}"));
    for (int e = 0; e < 4; ++e) requantise(m, e, 8, {.columns = 32, .zero_points = true});
  });
  EXPECT_EQ(storage_text(wide.formats), "int8 g32, zero points") << "whole names come before expressions";
}

/// AutoRound's symmetric integers reach -2^(bits - 1) on either side, by the sign of the scale.
TEST(Gptq, ScalesMayBeNegative) {
  const Read got = read(testing::kGptq, [](EditableModel& m) {
    auto& scales = m.tensor("model.layers.0.block_sparse_moe.experts.0.w1.scales");
    auto halves = numbers<std::uint16_t>(scales);
    halves[0] ^= 0x8000;
    put(scales, halves, scales.shape);
  });
  const Weights before = read(testing::kGptq).weights;
  EXPECT_EQ(got.weights[0][0], -before[0][0]);
  EXPECT_EQ(got.weights[0][256], before[0][256]);
}

/// The padded packing of before 2026-06, of the same integers.
void pad(EditableModel& m, int bits) {
  each(m, ".weight_packed", [&](NamedTensor& tensor) {
    const std::int64_t rows = tensor.shape[0], cols = tensor.shape[1] * 32 / bits;
    const PackedGrid dense{.line_stride = 4 * tensor.shape[1]};
    const std::int64_t words = format::words_of_line(Packing::padded, bits, cols);
    std::vector<std::uint32_t> out(static_cast<std::size_t>(rows * words));
    const std::int64_t whole = 32 / bits;
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < cols; ++c)
        out[static_cast<std::size_t>(r * words + c / whole)] |=
            format::integer_at(tensor.bytes.data(), dense, bits, {r, c}) << (c % whole * bits);
    put(tensor, out, {rows, words});
  });
}

TEST(PackQuantized, TheWidthTellsPaddedFromDense) {
  EXPECT_EQ(read(testing::kInt3, [](EditableModel& m) { pad(m, 3); }).weights, read(testing::kInt3).weights);
}

TEST(PackQuantized, AScaleAChannel) {
  const Read got = read(testing::kInt4, [](EditableModel& m) {
    m.in_config("\"group\"", "\"channel\"");
    each(m, ".weight_scale", [](NamedTensor& tensor) {
      const auto all = numbers<std::uint16_t>(tensor);
      const std::int64_t rows = tensor.shape[0], groups = tensor.shape[1];
      std::vector<std::uint16_t> first;
      for (std::int64_t r = 0; r < rows; ++r) first.push_back(all[static_cast<std::size_t>(r * groups)]);
      put(tensor, first, {rows, 1});
    });
  });
  EXPECT_EQ(storage_text(got.formats), "int4 row");
  const Weights grouped = read(testing::kInt4).weights;
  for (std::size_t c = 0; c < 32; ++c) EXPECT_EQ(got.weights[0][c], grouped[0][c]);
}

/// With the columns dealt out to the groups in turn, column c has the scale of group c % groups.
TEST(PackQuantized, ColumnsInAnotherOrder) {
  for (const char* order : {"\"group\"", "\"dynamic\"", "true"}) {
    const Read got = read(testing::kInt4, [&](EditableModel& m) {
      m.in_config("\"symmetric\"", "\"actorder\": " + std::string(order) + ", \"symmetric\"");
      std::vector<NamedTensor> lists;
      each(m, ".weight_packed", [&](NamedTensor& tensor) {
        const std::int64_t cols = tensor.shape[1] * 8;
        std::vector<std::int32_t> groups;
        for (std::int64_t c = 0; c < cols; ++c) groups.push_back(static_cast<std::int32_t>(c % (cols / 32)));
        NamedTensor list{tensor.name.substr(0, tensor.name.rfind('.')) + ".weight_g_idx", DType::i32, {}, {}};
        put(list, groups, {cols});
        lists.push_back(list);
      });
      for (NamedTensor& list : lists) m.add(std::move(list));
    });
    EXPECT_EQ(storage_text(got.formats), "int4 g32, act-order");
    const Weights before = read(testing::kInt4).weights;
    // Row 0 of gate of expert 0: 8 groups; columns 0, 40, 80 ... keep theirs only where c % 8 == c / 32.
    for (std::size_t c = 0; c < 256; ++c)
      if (c % 8 == c / 32) {
        EXPECT_EQ(got.weights[0][c], before[0][c]) << c;
      }
    EXPECT_NE(got.weights[0], before[0]);
  }
  const Read kept = read(testing::kInt4, [](EditableModel& m) {
    m.in_config("\"symmetric\"", "\"actorder\": \"weight\", \"symmetric\"");
  });
  EXPECT_EQ(kept.weights, read(testing::kInt4).weights) << "that order ended when the model was written";
}

TEST(PackQuantized, ZeroPointsMove) {
  const Read got = read(testing::kInt4Zeros, [](EditableModel& m) {
    auto& zeros = m.tensor("model.layers.0.mlp.experts.0.gate_proj.weight_zero_point");
    auto words = numbers<std::uint32_t>(zeros);
    words[0] ^= 0xF0;  // row 1, group 0
    put(zeros, words, zeros.shape);
  });
  const Weights before = read(testing::kInt4Zeros).weights;
  EXPECT_EQ(got.weights[0][0], before[0][0]);
  EXPECT_NE(got.weights[0][256], before[0][256]);
  EXPECT_EQ(got.weights[0][256 + 32], before[0][256 + 32]);
  EXPECT_EQ(got.weights[0][512], before[0][512]);
}

}  // namespace
}  // namespace sluice
