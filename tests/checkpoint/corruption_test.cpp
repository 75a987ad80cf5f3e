// SPDX-License-Identifier: Apache-2.0
// Every corruption of the table is refused as the table says, and no two with the same words.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>

#include "corruption.h"
#include "sluice/checkpoint.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using testing::Corruption;
using testing::EditableModel;
using testing::Step;

void expect_refused(const Corruption& corruption, std::set<std::string>& messages) {
  SCOPED_TRACE(corruption.name);
  EditableModel model = EditableModel::of(corruption.fixture);
  corruption.corrupt(model);
  const testing::TemporaryDirectory directory;
  const fs::path at = directory.path() / "model";
  model.write(at);
  Step reached = Step::open;
  try {
    const Checkpoint opened = Checkpoint::open(at.string());
    reached = Step::weights;
    opened.weights(opened.info().moe_layers.back());
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    std::string message = error.what();
    for (std::size_t i = message.find(directory.path().string()); i != message.npos;
         i = message.find(directory.path().string()))
      message.erase(i, directory.path().string().size());
    EXPECT_EQ(error.kind(), corruption.kind) << message;
    EXPECT_EQ(error.info().code, corruption.code) << message;
    EXPECT_EQ(reached, corruption.step) << "found too early or too late: " << message;
    EXPECT_FALSE(error.info().file.empty()) << "which file? " << message;
    EXPECT_FALSE(error.info().todo.empty()) << "and now? " << message;
    for (const char* part : corruption.says)
      EXPECT_NE(message.find(part), message.npos) << part << " in: " << message;
    EXPECT_TRUE(messages.insert(message).second) << "said twice: " << message;
  }
}

TEST(Corruption, EveryOneIsRefusedWithItsOwnMessage) {
  std::set<std::string> messages;
  for (const auto table :
       {testing::file_corruptions(), testing::configuration_corruptions(), testing::tensor_corruptions(),
        testing::value_corruptions(), testing::integer_corruptions()})
    for (const Corruption& corruption : table) expect_refused(corruption, messages);
}

TEST(Corruption, EveryCodeIsDocumented) {
  const std::string docs = testing::read_file(fs::path(SLUICE_SOURCE_DIR) / "docs/checkpoints.md");
  for (const auto table :
       {testing::file_corruptions(), testing::configuration_corruptions(), testing::tensor_corruptions(),
        testing::value_corruptions(), testing::integer_corruptions()})
    for (const Corruption& corruption : table)
      EXPECT_NE(docs.find("`" + std::string(corruption.code) + "`"), docs.npos) << corruption.code;
}

TEST(Corruption, WithoutOneEveryFixtureOpens) {
  for (const char* fixture :
       {testing::kGptOss, testing::kBf16Stack, testing::kV4, testing::kV4Base, testing::kV4Nvfp4,
        testing::kBlock, testing::kChannel, testing::kNvfp4, testing::kMxfp4, testing::kMixtral,
        testing::kAwq, testing::kGptq, testing::kActOrder, testing::kInt3, testing::kInt4,
        testing::kInt4Zeros, testing::kInt8}) {
    const testing::TemporaryDirectory directory;
    EditableModel::of(fixture).write(directory.path());
    const Checkpoint model = Checkpoint::open(directory.path().string());
    for (const int layer : model.info().moe_layers) EXPECT_NO_THROW(model.weights(layer)) << fixture;
  }
}

// The codes at the edges of what is good, at a place that a vector loop treats as its tail.
TEST(Corruption, CodesOfScalesAreJudgedToTheEdge) {
  struct Type {
    const char* fixture;
    const char* tensor;
    int first_good, last_good;
  };
  for (const Type& type :
       {Type{testing::kNvfp4, "model.layers.0.mlp.experts.2.down_proj.weight_scale", 1, 126},
        Type{testing::kMxfp4, "model.layers.0.mlp.experts.2.down_proj.weight_scale", 0, 254}}) {
    EditableModel model = EditableModel::of(type.fixture);
    for (const int code : {0, 1, 2, 7, 8, 0x38, 125, 126, 127, 128, 129, 0xB8, 253, 254, 255}) {
      model.set<std::uint8_t>(type.tensor, model.tensor(type.tensor).bytes.size() - 3,
                              static_cast<std::uint8_t>(code));
      const testing::TemporaryDirectory directory;
      model.write(directory.path());
      const Checkpoint opened = Checkpoint::open(directory.path().string());
      if (code >= type.first_good && code <= type.last_good)
        EXPECT_NO_THROW(opened.weights(0)) << type.fixture << " code " << code;
      else
        EXPECT_THROW(opened.weights(0), Error) << type.fixture << " code " << code;
    }
  }
}

TEST(Corruption, AFileThatChangesWhileOpenIsNoticed) {
  const testing::TemporaryDirectory directory;
  EditableModel::of(testing::kMixtral).write(directory.path());
  const Checkpoint model = Checkpoint::open(directory.path().string());
  EXPECT_NO_THROW(model.weights(0));
  fs::resize_file(directory.path() / "model.safetensors", 4096);
  try {
    model.weights(0);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::io);
    EXPECT_EQ(error.info().code, "file_changed") << error.what();
  }
}

}  // namespace
}  // namespace sluice
