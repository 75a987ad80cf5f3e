// SPDX-License-Identifier: Apache-2.0
// Names of models in a Hugging Face cache, with its links.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "corruption.h"
#include "sluice/checkpoint.h"
#include "sluice/error.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using testing::EditableModel;

constexpr const char* kCommit = "0123456789abcdef0123456789abcdef01234567";

/// A cache as `hf download` leaves it: files in blobs/, links in snapshots/<commit>/, the commit in
/// refs/main.
class Cache : public ::testing::Test {
 protected:
  void SetUp() override {
    const fs::path plain = directory_.path() / "plain";
    EditableModel::of(testing::kMixtral).write(plain);
    fs::create_directories(snapshot());
    fs::create_directories(repository() / "blobs");
    fs::create_directories(repository() / "refs" / "pr");
    for (const char* name : {"config.json", "model.safetensors"}) {
      const std::string blob = std::string("blob-of-") + name;
      fs::rename(plain / name, repository() / "blobs" / blob);
      fs::create_symlink(fs::path("../../blobs") / blob, snapshot() / name);
    }
    testing::write_file(repository() / "refs" / "main", std::string(kCommit) + "\n");
    testing::write_file(repository() / "refs" / "pr" / "1", kCommit);
  }

  std::string root() const { return directory_.path().string(); }
  fs::path repository() const { return directory_.path() / "hub" / "models--mistralai--Mixtral-8x7B"; }
  fs::path snapshot() const { return repository() / "snapshots" / kCommit; }

  /// The code with which `name` is refused.
  std::string refusal(const std::string& name, const std::string& root_of_cache) const {
    try {
      Checkpoint::open(name, root_of_cache);
      return "accepted";
    } catch (const Error& error) {
      message_ = error.what();
      kind_ = error.kind();
      return error.info().code;
    }
  }

  testing::TemporaryDirectory directory_;
  mutable std::string message_;
  mutable ErrorKind kind_ = ErrorKind::device;
};

TEST_F(Cache, FindsAModelByItsName) {
  const std::string name = "mistralai/Mixtral-8x7B";
  for (const std::string& revision :
       {std::string(), std::string("@main"), std::string("@") + kCommit, std::string("@pr/1")}) {
    const Checkpoint model = Checkpoint::open(name + revision, root());
    EXPECT_EQ(model.info().directory, snapshot().string());
    EXPECT_NO_THROW(model.weights(0));
  }
  EXPECT_NO_THROW(Checkpoint::open(name, root() + "/hub")) << "the root may be hub itself";
  EXPECT_NO_THROW(Checkpoint::open(snapshot().string())) << "a snapshot is a directory like any other";
}

TEST_F(Cache, SaysHowToFetchWhatIsNotThere) {
  EXPECT_EQ(refusal("openai/gpt-oss-20b", root()), "model_not_in_cache");
  EXPECT_NE(message_.find("hf download openai/gpt-oss-20b"), std::string::npos) << message_;
  EXPECT_EQ(kind_, ErrorKind::io);
  EXPECT_EQ(refusal("mistralai/Mixtral-8x7B@v2", root()), "revision_not_in_cache");
  EXPECT_NE(message_.find("hf download mistralai/Mixtral-8x7B --revision v2"), std::string::npos) << message_;
}

TEST_F(Cache, NamesAreNeitherPathsNorAccepted_WithoutARoot) {
  EXPECT_EQ(refusal("mistralai/Mixtral-8x7B", ""), "no_such_model");
  for (const char* name : {"../hub", "a/../b", "a/b/c", "a/b@../../x", "a/.b", "a/b@", "", "/", "a//b"})
    EXPECT_NE(refusal(std::string(name) + "\x01", root()), "accepted") << name;
  EXPECT_EQ(refusal("mistralai/Mixtral-8x7B@../refs", root()), "no_such_model");
}

TEST_F(Cache, ReferencesLeadToSnapshotsOnly) {
  testing::write_file(repository() / "refs" / "main", "../../../plain");
  EXPECT_EQ(refusal("mistralai/Mixtral-8x7B", root()), "revision_not_in_cache");
}

TEST_F(Cache, LinksLeadToTheModelsOwnBlobsOnly) {
  fs::create_directories(directory_.path() / "hub" / "models--other--model" / "blobs");
  const fs::path stolen = directory_.path() / "hub" / "models--other--model" / "blobs" / "stolen";
  fs::rename(repository() / "blobs" / "blob-of-model.safetensors", stolen);
  fs::remove(snapshot() / "model.safetensors");
  fs::create_symlink(stolen, snapshot() / "model.safetensors");
  EXPECT_EQ(refusal("mistralai/Mixtral-8x7B", root()), "link_out") << message_;
  EXPECT_EQ(kind_, ErrorKind::corrupt_file);
}

TEST_F(Cache, AnInterruptedDownloadIsADanglingLink) {
  fs::remove(repository() / "blobs" / "blob-of-model.safetensors");
  EXPECT_EQ(refusal("mistralai/Mixtral-8x7B", root()), "dangling_link");
  EXPECT_NE(message_.find("hf download"), std::string::npos) << message_;
}

TEST_F(Cache, AFileIsNoModel) {
  EXPECT_EQ(refusal((repository() / "refs" / "main").string(), root()), "not_a_directory");
}

TEST(Links, InsideTheDirectoryAreFollowed) {
  const testing::TemporaryDirectory directory;
  EditableModel::of(testing::kMixtral).write(directory.path());
  fs::create_directory(directory.path() / "data");
  fs::rename(directory.path() / "model.safetensors", directory.path() / "data" / "w");
  fs::create_symlink("data/w", directory.path() / "model.safetensors");
  EXPECT_NO_THROW(Checkpoint::open(directory.path().string()));
}

}  // namespace
}  // namespace sluice
