// SPDX-License-Identifier: Apache-2.0
#include "engine/packed_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "core/bits.h"
#include "core/checksum.h"

namespace sluice {
namespace {

constexpr char kMagic[8] = {'s', 'l', 'u', 'i', 'c', 'e', 'p', 'k'};
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
/// Longer is no identity that this library writes.
constexpr std::size_t kMostIdentity = std::size_t{1} << 20;

constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

struct Start {
  char magic[8];
  std::uint32_t version, identity;
  std::uint64_t runs, run_bytes, body;
};
static_assert(sizeof(Start) == 40);

/// Where the parts of a file are.
struct Places {
  std::size_t identity, sums, header_sum, body, end;

  Places(std::size_t identity_bytes, const PackedRuns& runs)
      : identity(sizeof(Start)),
        sums(round_up(identity + identity_bytes, 8)),
        header_sum(sums + runs.count * runs.blocks() * sizeof(std::uint64_t)),
        body(round_up(header_sum + sizeof(std::uint64_t), kHugePage)),
        end(body + runs.count * runs.bytes) {}
};

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { (void)close_now(); }

  int number() const { return number_; }
  /// False when what was written did not reach its place (a full disk of another machine).
  bool close_now() {
    const bool ok = number_ < 0 || ::close(number_) == 0;
    number_ = -1;
    return ok;
  }

 private:
  int number_;
};

std::string system_text(int error) { return std::generic_category().message(error); }

bool read_all(int file, std::byte* to, std::size_t bytes) {
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t got = ::pread(file, to + done, bytes - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    done += static_cast<std::size_t>(got);
  }
  return true;
}

/// 0, or the error.
int write_all(int file, std::span<const std::byte> bytes, std::size_t offset) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::pwrite(file, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return wrote < 0 ? errno : ENOSPC;
    bytes = bytes.subspan(static_cast<std::size_t>(wrote));
    offset += static_cast<std::size_t>(wrote);
  }
  return 0;
}

/// The body, at an address that huge pages can begin at. Null when the system refuses.
std::shared_ptr<std::byte> map_body(int file, std::size_t offset, std::size_t bytes) {
  const std::size_t room = bytes + kHugePage;
  void* const reserved = ::mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  const auto address = reinterpret_cast<std::uintptr_t>(reserved);
  auto* const start = static_cast<std::byte*>(reserved) + (round_up(address, kHugePage) - address);
  std::shared_ptr<std::byte> body(start, [reserved, room](std::byte*) { ::munmap(reserved, room); });
  if (::mmap(start, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED, file,
             static_cast<off_t>(offset)) == MAP_FAILED)
    return nullptr;
  // A wish, which file systems with large folios grant.
  (void)::madvise(start, bytes, MADV_HUGEPAGE);
  return body;
}

FoundFile damaged(std::string_view what) { return {{}, fmt::format("is damaged ({})", what)}; }

}  // namespace

FoundFile open_packed(const std::string& path, const std::string& identity, std::size_t runs) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (file.number() < 0) {
    if (errno == ENOENT || errno == ENOTDIR) return {};
    return {{}, fmt::format("cannot be opened ({})", system_text(errno))};
  }
  struct stat facts {};
  if (::fstat(file.number(), &facts) != 0 || !S_ISREG(facts.st_mode)) return damaged("it is no plain file");
  const auto size = static_cast<std::size_t>(facts.st_size);
  Start start{};
  if (size < sizeof start || !read_all(file.number(), reinterpret_cast<std::byte*>(&start), sizeof start))
    return damaged("it ends within its header");
  if (std::memcmp(start.magic, kMagic, sizeof kMagic) != 0) return damaged("it does not start like one");
  if (start.version != kVersion)
    return {{}, fmt::format("is of version {}, not {}", start.version, kVersion)};
  const bool sane = start.identity <= kMostIdentity && start.runs == runs && start.run_bytes != 0 &&
                    start.run_bytes % 64 == 0 && start.run_bytes <= size / runs;
  if (!sane) return damaged("its header makes no sense");
  const PackedRuns shape{runs, start.run_bytes};
  const Places at(start.identity, shape);
  if (start.body != at.body) return damaged("its header makes no sense");
  if (at.end != size) return damaged(fmt::format("it has {} bytes, not {}", size, at.end));

  std::vector<std::byte> header(at.header_sum + sizeof(std::uint64_t));
  if (!read_all(file.number(), header.data(), header.size())) return damaged("it ends within its header");
  if (checksum({header.data(), at.header_sum}) != load<std::uint64_t>(header.data() + at.header_sum))
    return damaged("the checksum of its header is wrong");
  const std::string_view its(reinterpret_cast<const char*>(header.data() + at.identity), start.identity);
  if (its != identity) return {{}, "is stale (the weights, the backend or its layout are others now)"};

  PackedFile found{.runs = shape,
                   .body = map_body(file.number(), at.body, runs * shape.bytes),
                   .sums = std::vector<std::uint64_t>(runs * shape.blocks()),
                   .device = facts.st_dev,
                   .number = facts.st_ino};
  if (found.body == nullptr) return {{}, fmt::format("cannot be mapped ({})", system_text(errno))};
  std::memcpy(found.sums.data(), header.data() + at.sums, found.sums.size() * sizeof(std::uint64_t));
  return {std::move(found)};
}

namespace {

/// Everything before the body.
std::vector<std::byte> header_of(const std::string& identity, const PackedRuns& runs,
                                 const std::vector<std::uint64_t>& sums) {
  const Places at(identity.size(), runs);
  std::vector<std::byte> header(at.header_sum + sizeof(std::uint64_t));
  Start start{.magic = {},
              .version = kVersion,
              .identity = static_cast<std::uint32_t>(identity.size()),
              .runs = runs.count,
              .run_bytes = runs.bytes,
              .body = at.body};
  std::memcpy(start.magic, kMagic, sizeof kMagic);
  store(header.data(), start);
  std::memcpy(header.data() + at.identity, identity.data(), identity.size());
  std::memcpy(header.data() + at.sums, sums.data(), sums.size() * sizeof(std::uint64_t));
  store(header.data() + at.header_sum, checksum({header.data(), at.header_sum}));
  return header;
}

/// Those that writers left behind which did not live to give them their name. A writer that lives writes, so
/// that an hour without a change is enough.
void remove_remains(const std::filesystem::path& path) {
  std::error_code none;
  const std::string start = path.filename().string() + ".";
  const auto before = std::filesystem::file_time_type::clock::now() - std::chrono::hours(1);
  for (std::filesystem::directory_iterator at(path.parent_path(), none), end; !none && at != end;
       at.increment(none)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with(start) || !name.ends_with(".part")) continue;
    const auto changed = at->last_write_time(none);
    if (!none && changed < before) std::filesystem::remove(at->path(), none);
  }
}

/// Writes all of it to `file`. 0, or the error.
int write_to(int file, const std::string& identity, const PackedRuns& runs, std::span<const std::byte> body,
             Executor& executor) {
  const Places at(identity.size(), runs);
  // Early and at once, where the file system can: it may not fit.
  if (::fallocate(file, 0, static_cast<off_t>(at.body), static_cast<off_t>(body.size())) != 0 &&
      errno == ENOSPC)
    return ENOSPC;
  std::vector<std::uint64_t> sums(runs.count * runs.blocks());
  std::atomic<int> error = 0;
  parallel_for(executor, static_cast<int>(sums.size()), [&](int task, int) {
    if (error != 0) return;
    const auto index = static_cast<std::size_t>(task);
    const auto block = runs.block(body.data(), index / runs.blocks(), index % runs.blocks());
    sums[index] = checksum(block);
    const int failed = write_all(file, block, at.body + static_cast<std::size_t>(block.data() - body.data()));
    if (failed != 0) error = failed;
  });
  if (error != 0) return error;
  return write_all(file, header_of(identity, runs, sums), 0);
}

}  // namespace

std::string write_packed(const std::string& path, const std::string& identity, std::size_t runs,
                         std::span<const std::byte> body, Executor& executor) {
  const auto failed = [&](int error) { return fmt::format("cannot be written ({})", system_text(error)); };
  std::error_code made;
  const std::filesystem::path place(path);
  std::filesystem::create_directories(place.parent_path(), made);
  if (made) return failed(made.value());
  remove_remains(place);
  // Names that two writers have in common are refused by O_EXCL.
  const std::string part = fmt::format("{}.{}.{}.part", path, ::getpid(),
                                       std::chrono::steady_clock::now().time_since_epoch().count());
  Descriptor file(::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (file.number() < 0) return failed(errno);
  int error = write_to(file.number(), identity, {runs, body.size() / runs}, body, executor);
  if (!file.close_now() && error == 0) error = errno;
  // No fsync: after a crash of the machine checksums tell what is missing, and gigabytes would have to be
  // waited for at every first start.
  if (error == 0 && ::rename(part.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return {};
  ::unlink(part.c_str());
  return failed(error);
}

void remove_packed(const std::string& path, const PackedFile& file) {
  struct stat facts {};
  if (::stat(path.c_str(), &facts) == 0 && facts.st_dev == file.device && facts.st_ino == file.number)
    ::unlink(path.c_str());
}

}  // namespace sluice
