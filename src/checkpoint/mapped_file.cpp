// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "core/error.h"

namespace sluice::checkpoint {
namespace {

ErrorInfo system_error(const char* code, std::string what, const std::string& path, int error) {
  return {.code = code,
          .what = std::move(what),
          .file = path,
          .why = std::strerror(error),
          .todo = error == ENOENT ? "Check the path" : "Check that the file may be read by this user"};
}

long long nanoseconds(const struct timespec& time) {
  return static_cast<long long>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

long long changed_ns(const struct stat& facts) { return nanoseconds(facts.st_mtim); }

}  // namespace

MappedFile::MappedFile(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}

std::shared_ptr<const MappedFile> MappedFile::open(const std::string& path) {
  return open_with(0, path, path);
}

std::shared_ptr<const MappedFile> MappedFile::open_resolved(const std::string& real,
                                                            const std::string& shown) {
  return open_with(O_NOFOLLOW, real, shown);
}

std::shared_ptr<const MappedFile> MappedFile::open_with(int flags, const std::string& real,
                                                        const std::string& shown) {
  // O_NONBLOCK: opening a pipe must not wait for a writer; it has no effect on regular files.
  const int descriptor = ::open(real.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | flags);
  const int error = errno;
  require(descriptor >= 0, ErrorKind::io,
          [&] { return system_error("cannot_open", "the file cannot be opened", shown, error); });
  const std::shared_ptr<MappedFile> file(new MappedFile(shown, descriptor));
  file->map();
  return file;
}

void MappedFile::map() {
  struct stat facts {};
  const int failed = ::fstat(descriptor_, &facts);
  const int error = errno;
  require(failed == 0, ErrorKind::io,
          [&] { return system_error("cannot_stat", "the file's size cannot be read", path_, error); });
  require(S_ISREG(facts.st_mode), ErrorKind::io, [&] {
    return ErrorInfo{.code = "not_a_file",
                     .what = S_ISDIR(facts.st_mode) ? "a file was expected, this is a directory"
                                                    : "a file was expected, this is a pipe or a device",
                     .file = path_,
                     .todo = "Give the path of a .safetensors file"};
  });
  size_ = static_cast<std::size_t>(facts.st_size);
  changed_ns_ = changed_ns(facts);
  status_changed_ns_ = nanoseconds(facts.st_ctim);
  if (size_ == 0) return;
  void* data = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor_, 0);
  const int map_error = errno;
  require(data != MAP_FAILED, ErrorKind::io,
          [&] { return system_error("cannot_map", "the file cannot be mapped", path_, map_error); });
  data_ = static_cast<const std::byte*>(data);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
  ::close(descriptor_);
}

SourceFile MappedFile::source() const {
  std::error_code none;
  const std::filesystem::path real = std::filesystem::canonical(path_, none);
  return {.path = none ? path_ : real.string(),
          .data = data_,
          .bytes = size_,
          .modified_ns = changed_ns_,
          .status_changed_ns = status_changed_ns_};
}

void MappedFile::check_unchanged() const {
  struct stat facts {};
  const bool known = ::fstat(descriptor_, &facts) == 0;
  const bool same =
      known && static_cast<std::size_t>(facts.st_size) == size_ && changed_ns(facts) == changed_ns_;
  require(same, ErrorKind::io, [&] {
    return ErrorInfo{.code = "file_changed",
                     .what = "the file changed while it was open",
                     .file = path_,
                     .why = static_cast<std::size_t>(facts.st_size) == size_
                                ? "it was written to after it was opened"
                                : fmt::format("it had {} bytes, it has {} now", size_, facts.st_size),
                     .todo = "Wait until the download or copy is complete and open the model again"};
  });
}

std::string text_of(const MappedFile& file, std::size_t cap) {
  const auto bytes = file.bytes();
  require(bytes.size() <= cap, ErrorKind::corrupt_file, [&] {
    return ErrorInfo{.code = "text_too_long",
                     .what = fmt::format("the file has {} bytes, at most {} are read", bytes.size(), cap),
                     .file = file.path(),
                     .why = "configurations and indices of published models are far smaller",
                     .todo = "Fetch the file again"};
  });
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace sluice::checkpoint
