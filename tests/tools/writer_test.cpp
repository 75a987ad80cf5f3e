// SPDX-License-Identifier: Apache-2.0
// The safetensors writer against the strict reader, and what `run` and `check` read from such files.
#include "testing/safetensors_writer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "sluice/checkpoint.h"
#include "sluice/error.h"
#include "testing/layer_input.h"

namespace sluice::testing {
namespace {

class Writer : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }

  /// Test programs may run side by side.
  const std::string path_ = ::testing::TempDir() + "sluice_writer_" +
                            ::testing::UnitTest::GetInstance()->current_test_info()->name() + ".safetensors";
};

std::vector<NamedTensor> three_tensors() {
  const std::vector<float> floats = {1.5f, -2.0f, 3.25f};
  const std::vector<std::int64_t> ints = {-1, 1LL << 40};
  const std::vector<std::uint8_t> bytes = {7};
  return {tensor_of<std::uint8_t>("c.bytes", DType::u8, {1}, bytes),
          tensor_of<float>("b.floats", DType::f32, {3}, floats),
          tensor_of<std::int64_t>("a.ints", DType::i64, {2, 1}, ints)};
}

TEST_F(Writer, TheStrictReaderReadsItBack) {
  for (const TensorOrder order : {TensorOrder::by_width, TensorOrder::by_name, TensorOrder::as_given}) {
    const std::vector<NamedTensor> tensors = three_tensors();
    write_safetensors(path_, tensors, {.order = order, .metadata = {{"format", "pt"}}});
    const TensorFile file = TensorFile::open(path_);
    ASSERT_EQ(file.names().size(), tensors.size());
    EXPECT_EQ(file.metadata().at("format"), "pt");
    for (const NamedTensor& tensor : tensors) {
      const TensorView& view = file.at(tensor.name);
      EXPECT_EQ(view.dtype, tensor.dtype);
      EXPECT_EQ(view.shape, tensor.shape);
      EXPECT_EQ(std::vector<std::byte>(view.data, view.data + view.bytes()), tensor.bytes);
    }
  }
}

TEST_F(Writer, OrdersAsAsked) {
  using Names = std::vector<std::string>;
  const auto written = [&](TensorOrder order) {
    write_safetensors(path_, three_tensors(), {.order = order});
    return TensorFile::open(path_).names();
  };
  EXPECT_EQ(written(TensorOrder::by_width), (Names{"a.ints", "b.floats", "c.bytes"}));
  EXPECT_EQ(written(TensorOrder::by_name), (Names{"a.ints", "b.floats", "c.bytes"}));
  EXPECT_EQ(written(TensorOrder::as_given), (Names{"c.bytes", "b.floats", "a.ints"}));
}

TEST_F(Writer, DataBeginOnAMultipleOfEight) {
  const std::string file = safetensors_file(three_tensors());
  std::uint64_t header = 0;
  std::memcpy(&header, file.data(), sizeof header);
  EXPECT_EQ(header % 8, 0u);
  EXPECT_EQ(file.size(), 8 + header + 16 + 12 + 1);
}

TEST_F(Writer, RefusesWrongSizesAndRepeatedNames) {
  std::vector<NamedTensor> tensors = three_tensors();
  tensors[1].shape = {4};
  EXPECT_THROW(safetensors_file(tensors), Error);
  tensors[1].shape = {3};
  tensors[1].name = tensors[0].name;
  EXPECT_THROW(safetensors_file(tensors), Error);
}

TEST_F(Writer, LeavesNothingWhereItCannotWrite) {
  EXPECT_THROW(write_safetensors(path_ + ".absent/file", three_tensors()), Error);
  EXPECT_FALSE(std::filesystem::exists(path_ + ".absent"));
}

LayerSpec small_layer() {
  const Format bf16 = *Format::parse("bf16");
  return {.routed = {.hidden = 2,
                     .intermediate = 4,
                     .experts = 3,
                     .local_experts = 3,
                     .top_k = 2,
                     .formats = {.gate = bf16, .up = bf16, .down = bf16},
                     .activation = *Activation::parse("silu")},
          .router = {.score = *Score::parse("softmax"), .experts = 3, .top_k = 2}};
}

TEST_F(Writer, LayerInputTakesPlainNamesAsInputs) {
  const std::vector<float> hidden = {1, 2}, weights = {0.25f, 0.75f}, logits = {1, 2, 3};
  const std::vector<std::int64_t> ids = {2, -1}, beyond = {2, 1LL << 40};
  std::vector<NamedTensor> tensors = {tensor_of<float>("hidden", DType::f32, {1, 2}, hidden),
                                      tensor_of<float>("router_logits", DType::f32, {1, 3}, logits)};
  write_safetensors(path_, tensors);
  LayerInput input = read_layer_input(TensorFile::open(path_), 7, small_layer());
  EXPECT_EQ(input.routed_by(), "router_logits");
  EXPECT_EQ(input.hidden.rows, 1);

  tensors.push_back(tensor_of<std::int64_t>("topk_ids", DType::i64, {1, 2}, ids));
  write_safetensors(path_, tensors);
  EXPECT_THROW(read_layer_input(TensorFile::open(path_), 7, small_layer()), Error) << "ids without weights";

  tensors.push_back(tensor_of<float>("topk_weights", DType::f32, {1, 2}, weights));
  write_safetensors(path_, tensors);
  input = read_layer_input(TensorFile::open(path_), 7, small_layer());
  EXPECT_EQ(input.routed_by(), "topk_ids");
  EXPECT_EQ(input.topk_ids, (std::vector<std::int32_t>{2, -1}));
  EXPECT_EQ(input.routing().top_k, 2);

  tensors[2] = tensor_of<std::int64_t>("topk_ids", DType::i64, {1, 2}, beyond);
  write_safetensors(path_, tensors);
  EXPECT_THROW(read_layer_input(TensorFile::open(path_), 7, small_layer()), Error) << "no such expert";
}

TEST_F(Writer, NumberedNamesAreResultsButForHiddenAndIds) {
  const std::vector<float> hidden = {1, 2}, logits = {1, 2, 3};
  const std::vector<std::int64_t> token_ids = {9};
  write_safetensors(path_, std::vector{tensor_of<float>("7.hidden", DType::f32, {1, 2}, hidden),
                                       tensor_of<std::int64_t>("7.input_ids", DType::i64, {1}, token_ids),
                                       tensor_of<float>("7.router_logits", DType::f32, {1, 3}, logits)});
  const TensorFile file = TensorFile::open(path_);
  const LayerInput input = read_layer_input(file, 7, small_layer());
  EXPECT_EQ(input.routed_by(), "router");
  EXPECT_EQ(input.token_ids, token_ids);
  EXPECT_EQ(expected_layers(file), std::vector<int>{7});
  EXPECT_THROW(read_layer_input(file, 8, small_layer()), Error);
  EXPECT_THROW(read_expected(file, 7, small_layer(), 1), Error) << "there is no output to compare with";
}

}  // namespace
}  // namespace sluice::testing
