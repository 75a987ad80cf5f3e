// SPDX-License-Identifier: Apache-2.0
// Files of packed weights by themselves: what is damaged about their headers is noticed wherever it is.
#include "engine/packed_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <thread>

#include "core/checksum.h"
#include "tests/engine/scratch_folder.h"

namespace sluice {
namespace {

using testing::read_file;
using testing::ScratchFolder;
using testing::write_file;

constexpr std::size_t kRuns = 3;

struct Written {
  ScratchFolder folder;
  std::string path = folder.path() + "/a.packed";
  std::string identity = "who I am";
  // More than a block, and no multiple of one.
  std::vector<std::byte> body = std::vector<std::byte>(kRuns * (kPackedBlock + 640));
  std::unique_ptr<Executor> executor = make_thread_team(2);

  Written() {
    for (std::size_t i = 0; i < body.size(); ++i) body[i] = std::byte(i * 7 + i / 4096);
    EXPECT_EQ(write(), "");
  }
  std::string write() const { return write_packed(path, identity, kRuns, body, *executor); }
  FoundFile open() const { return open_packed(path, identity, kRuns); }
  /// Blocks whose checksum is wrong.
  static int wrong(const PackedFile& file);
};

int Written::wrong(const PackedFile& file) {
  int count = 0;
  for (std::size_t run = 0; run < file.runs.count; ++run)
    for (std::size_t block = 0; block < file.runs.blocks(); ++block)
      count += checksum(file.runs.block(file.body.get(), run, block)) !=
               file.sums[run * file.runs.blocks() + block];
  return count;
}

TEST(PackedFile, GivesBackWhatWasWritten) {
  const Written written;
  const FoundFile found = written.open();
  ASSERT_TRUE(found.file) << found.why;
  EXPECT_EQ(found.file->runs.bytes, kPackedBlock + 640);
  EXPECT_EQ(std::memcmp(found.file->body.get(), written.body.data(), written.body.size()), 0);
  EXPECT_EQ(Written::wrong(*found.file), 0);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(found.file->body.get()) % (std::size_t{2} << 20), 0u);
  EXPECT_EQ(written.folder.names(), std::vector<std::string>{"a.packed"});
}

TEST(PackedFile, NoFileIsNothingToSay) {
  const FoundFile found = open_packed("/nowhere/a.packed", "", 1);
  EXPECT_FALSE(found.file);
  EXPECT_EQ(found.why, "");
}

TEST(PackedFile, WhatIsWrittenToTheBodyDoesNotReachTheFile) {
  const Written written;
  const std::string before = read_file(written.path);
  const FoundFile found = written.open();
  ASSERT_TRUE(found.file);
  std::memset(found.file->body.get(), 0, written.body.size());
  EXPECT_EQ(read_file(written.path), before);
}

TEST(PackedFile, EveryByteOfTheHeaderCounts) {
  const Written written;
  const std::string whole = read_file(written.path);
  const std::size_t header = 40 + 8 + 8 * (kRuns * 2 + 1);
  for (std::size_t at = 0; at < header; ++at)
    for (const int bit : {0, 7}) {
      testing::flip(written.path, at, bit);
      const FoundFile found = written.open();
      EXPECT_FALSE(found.file) << "byte " << at;
      EXPECT_NE(found.why, "") << "byte " << at;
      testing::flip(written.path, at, bit);
    }
  EXPECT_EQ(read_file(written.path), whole);
  EXPECT_TRUE(written.open().file);
}

TEST(PackedFile, AnyOtherLengthIsNoticed) {
  const Written written;
  const std::string whole = read_file(written.path);
  for (const std::size_t length :
       {std::size_t{0}, std::size_t{1}, std::size_t{39}, std::size_t{40}, std::size_t{60},
        std::size_t{2} << 20, whole.size() - written.body.size(), whole.size() - 4096, whole.size() - 1}) {
    write_file(written.path, whole.substr(0, length));
    EXPECT_FALSE(written.open().file) << length;
    EXPECT_NE(written.open().why.find("damaged"), std::string::npos) << written.open().why;
  }
  write_file(written.path, whole + "x");
  EXPECT_FALSE(written.open().file);
}

TEST(PackedFile, SizesOutOfThisWorldAreRefused) {
  const Written written;
  const std::string whole = read_file(written.path);
  for (const std::uint64_t size :
       {~std::uint64_t{0}, std::uint64_t{1} << 63, std::uint64_t{0}, std::uint64_t{64}}) {
    for (const std::size_t at : {std::size_t{16}, std::size_t{24}, std::size_t{32}}) {
      std::string bytes = whole;
      std::memcpy(bytes.data() + at, &size, sizeof size);
      write_file(written.path, bytes);
      EXPECT_FALSE(written.open().file) << at << " " << size;
    }
  }
}

TEST(PackedFile, AnyByteOfTheBodyIsNoticedByItsBlock) {
  const Written written;
  const std::size_t body = read_file(written.path).size() - written.body.size();
  for (const std::size_t at : {std::size_t{0}, std::size_t{63}, kPackedBlock - 1, kPackedBlock,
                               kPackedBlock + 639, kPackedBlock + 640, written.body.size() - 1})
    for (const int bit : {0, 7}) {
      testing::flip(written.path, body + at, bit);
      const FoundFile found = written.open();
      ASSERT_TRUE(found.file) << found.why;
      EXPECT_EQ(Written::wrong(*found.file), 1) << at;
      testing::flip(written.path, body + at, bit);
    }
}

TEST(PackedFile, AnotherIdentityIsStale) {
  const Written written;
  for (const std::string& other : {std::string("who I was"), std::string("who I am."), std::string()}) {
    const FoundFile found = open_packed(written.path, other, kRuns);
    EXPECT_FALSE(found.file);
    EXPECT_NE(found.why.find("stale"), std::string::npos) << found.why;
  }
}

TEST(PackedFile, LinksAndPipesAreNotFollowed) {
  const Written written;
  const std::string link = written.folder.path() + "/link.packed";
  ASSERT_EQ(::symlink(written.path.c_str(), link.c_str()), 0);
  EXPECT_FALSE(open_packed(link, written.identity, kRuns).file);
  EXPECT_FALSE(open_packed(written.folder.path(), written.identity, kRuns).file);
}

/// A full disk, for which a limit on the size of files stands here.
TEST(PackedFile, ADiskThatIsFullLeavesNothingBehind) {
  const Written written;
  const std::string before = read_file(written.path);
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto ignored = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit little{1 << 20, old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &little), 0);
  const std::string why = written.write();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, ignored);
  EXPECT_NE(why.find("cannot be written"), std::string::npos) << why;
  EXPECT_EQ(read_file(written.path), before);
  EXPECT_EQ(written.folder.names(), std::vector<std::string>{"a.packed"});
}

TEST(PackedFile, AFolderThatCannotBeMadeIsSaid) {
  const Written written;
  const std::string why =
      write_packed(written.path + "/below/b.packed", "", 1, {written.body.data(), 64}, *written.executor);
  EXPECT_NE(why.find("cannot be written"), std::string::npos) << why;
}

TEST(PackedFile, WritersAtOnceLeaveAWholeFile) {
  const Written written;
  std::vector<std::thread> writers;
  for (int i = 0; i < 4; ++i)
    writers.emplace_back([&] {
      for (int round = 0; round < 5; ++round) {
        EXPECT_EQ(written.write(), "");
        const FoundFile found = written.open();
        ASSERT_TRUE(found.file) << found.why;
        EXPECT_EQ(Written::wrong(*found.file), 0);
      }
    });
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(written.folder.names(), std::vector<std::string>{"a.packed"});
}

TEST(PackedFile, WhatWritersLeftBehindIsClearedAwayInTime) {
  const Written written;
  write_file(written.path + ".1.1.part", "old");
  write_file(written.path + ".1.2.part", "young");
  write_file(written.folder.path() + "/b.packed.1.1.part", "of another");
  const auto two_hours = std::filesystem::file_time_type::clock::now() - std::chrono::hours(2);
  for (const char* name : {"/a.packed.1.1.part", "/b.packed.1.1.part"})
    std::filesystem::last_write_time(written.folder.path() + name, two_hours);
  EXPECT_EQ(written.write(), "");
  EXPECT_EQ(written.folder.names(),
            (std::vector<std::string>{"a.packed", "a.packed.1.2.part", "b.packed.1.1.part"}));
}

TEST(PackedFile, OnlyTheFileThatWasFoundIsRemoved) {
  const Written written;
  const FoundFile found = written.open();
  ASSERT_TRUE(found.file);
  EXPECT_EQ(written.write(), "");  // another file of that name
  remove_packed(written.path, *found.file);
  const FoundFile again = written.open();
  ASSERT_TRUE(again.file);
  remove_packed(written.path, *again.file);
  EXPECT_FALSE(written.open().file);
}

}  // namespace
}  // namespace sluice
