// SPDX-License-Identifier: Apache-2.0
#include "engine/identity.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "core/bits.h"
#include "core/checksum.h"
#include "format/extents.h"

namespace sluice {
namespace {

using format::Extent;

/// Enough that other weights of the same shapes differ in one, few enough that a disk finds them in
/// milliseconds.
constexpr std::size_t kSamples = 64;
constexpr std::size_t kSampleBytes = 64;

/// Collects numbers, to be told by their checksum.
class Numbers {
 public:
  template <class T>
  void add(T value) {
    const std::size_t at = bytes_.size();
    bytes_.resize(at + sizeof(T));
    store(bytes_.data() + at, value);
  }
  void add_bytes(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  /// 128 bits: two packings that share a name would take turns in one file.
  std::string text() const { return fmt::format("{:016x}{:016x}", checksum(bytes_, 1), checksum(bytes_, 2)); }

 private:
  std::vector<std::byte> bytes_;
};

/// The file that an extent lies in, or none.
const SourceFile* file_of(const Extent& extent, std::span<const SourceFile> files) {
  const std::less_equal<> not_after;
  for (const SourceFile& file : files)
    if (not_after(file.data, extent.begin()) && not_after(extent.end(), file.data + file.bytes)) return &file;
  return nullptr;
}

/// All that a view says beside its bytes, or that they have been packed by.
void add_shape(Numbers& numbers, const WeightMatrix& matrix) {
  const IntegerParts& parts = matrix.integers;
  numbers.add(matrix.col_stride);
  numbers.add(matrix.scales.dtype);
  numbers.add(matrix.scales.col_stride);
  numbers.add(matrix.second_scale);
  for (const PackedGrid& grid : {parts.codes, parts.zeros_grid}) {
    numbers.add(grid.packing);
    numbers.add(grid.along);
    numbers.add(grid.word_stride);
  }
  numbers.add(parts.zero_offset);
  numbers.add(matrix.blocks.columns);
  numbers.add(matrix.blocks.bytes);
}

void add_shape(Numbers& numbers, const ExpertWeights& expert) {
  if (expert.gate) add_shape(numbers, *expert.gate);
  add_shape(numbers, expert.up);
  add_shape(numbers, expert.down);
  for (const VectorView& bias : {expert.gate_bias, expert.up_bias, expert.down_bias}) numbers.add(bias.dtype);
}

std::uint64_t content_of(const Extent& extent) {
  std::uint64_t sum = 0;
  for (std::int64_t line = 0; line < extent.lines; ++line)
    sum = checksum({extent.data + line * extent.stride, extent.line_bytes}, sum);
  return sum;
}

/// The views of a packing, by where they are.
struct Views {
  std::vector<Extent> in_files, in_memory;
  std::vector<const SourceFile*> files;  // each once, in the order of their first views
};

Views views_of(const PackInput& input, std::span<const SourceFile> files, Numbers& places) {
  Views views;
  for (const ExpertWeights& expert : input.experts) {
    add_shape(places, expert);
    for (const Extent& extent : format::extents_of(expert)) {
      places.add(extent.lines);
      places.add(extent.stride);
      places.add(extent.line_bytes);
      const SourceFile* const file = file_of(extent, files);
      if (file == nullptr) {
        views.in_memory.push_back(extent);
        continue;
      }
      const auto at = std::find(views.files.begin(), views.files.end(), file);
      places.add(at - views.files.begin());
      places.add(extent.data - file->data);
      if (at == views.files.end()) views.files.push_back(file);
      views.in_files.push_back(extent);
    }
  }
  return views;
}

std::string content_of(const std::vector<Extent>& extents, Executor& executor) {
  std::vector<std::uint64_t> sums(extents.size());
  parallel_for(executor, static_cast<int>(extents.size()), [&](int task, int) {
    sums[static_cast<std::size_t>(task)] = content_of(extents[static_cast<std::size_t>(task)]);
  });
  Numbers numbers;
  for (const std::uint64_t sum : sums) numbers.add(sum);
  return numbers.text();
}

/// Of every so many extents, some bytes from where a multiplicative sequence falls.
std::string samples_of(const std::vector<Extent>& extents) {
  Numbers numbers;
  const std::size_t samples = std::min(kSamples, extents.size());
  std::uint64_t place = 1;
  for (std::size_t i = 0; i < samples; ++i) {
    place *= 0x9E3779B97F4A7C15u;
    const Extent& extent = extents[i * extents.size() / samples];
    const std::size_t bytes = std::min(kSampleBytes, extent.line_bytes);
    const auto line = static_cast<std::int64_t>((place >> 32) % static_cast<std::uint64_t>(extent.lines));
    const std::size_t first = (place >> 8) % (extent.line_bytes - bytes + 1);
    numbers.add_bytes({extent.data + line * extent.stride + first, bytes});
  }
  return numbers.text();
}

/// What packing may read of a spec: all but what a call brings along (adapters) and how many experts it has
/// of others.
std::string spec_text(const ExpertsSpec& spec) {
  const ActivationParams& params = spec.params;
  return fmt::format("{} experts of {} x {}, {}, {} {} {} {} {} {}, bias {}{}, {}", spec.local_experts,
                     spec.hidden, spec.intermediate, storage_text(spec), spec.activation.str(), params.limit,
                     params.slope, params.shift, params.situ_beta, params.situ_linear_beta,
                     spec.gate_up_bias ? "gate up " : "", spec.down_bias ? "down" : "",
                     spec.weight_on_input ? "weight on input" : "weight on output");
}

}  // namespace

Identity identity_of(const Backend& backend, const PackInput& input, std::span<const SourceFile> files) {
  Numbers places;
  const Views views = views_of(input, files, places);
  std::string name = fmt::format("{}\n{}\nviews {}\ncontent {}\n", backend.name, spec_text(input.spec),
                                 places.text(), content_of(views.in_memory, input.executor));
  std::string state =
      fmt::format("layout {}\nsamples {}\n", backend.keeping.version, samples_of(views.in_files));
  for (const SourceFile* file : views.files) {
    name += fmt::format("file {}\n", file->path);
    state += fmt::format("{} bytes, modified {}, changed {}\n", file->bytes, file->modified_ns,
                         file->status_changed_ns);
  }
  Numbers hashed;
  hashed.add_bytes(std::as_bytes(std::span(name)));
  return {.name = fmt::format("{}-{}.packed", backend.name, hashed.text()), .text = name + state};
}

std::function<void(std::int32_t)> page_releaser(std::span<const ExpertWeights> experts,
                                                std::span<const SourceFile> files) {
  if (files.empty()) return {};
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  using Range = std::pair<void*, std::size_t>;
  // Made here, since where it is called nothing may throw.
  auto ranges = std::make_shared<std::vector<std::vector<Range>>>(experts.size());
  for (std::size_t e = 0; e < experts.size(); ++e)
    for (const Extent& extent : format::extents_of(experts[e])) {
      if (file_of(extent, files) == nullptr) continue;
      const auto begin = reinterpret_cast<std::uintptr_t>(extent.begin()) / page * page;
      const auto end = reinterpret_cast<std::uintptr_t>(extent.end());
      (*ranges)[e].push_back({reinterpret_cast<void*>(begin), end - begin});
    }
  return [ranges](std::int32_t local) {
    for (const auto& [start, bytes] : (*ranges)[static_cast<std::size_t>(local)])
      (void)::madvise(start, bytes, MADV_DONTNEED);
  };
}

}  // namespace sluice
