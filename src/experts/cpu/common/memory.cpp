// SPDX-License-Identifier: Apache-2.0
#include "experts/cpu/common/memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstdlib>

#include "core/error.h"

namespace sluice::cpu {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

std::shared_ptr<std::byte> allocate(std::size_t bytes) {
  // Below a few huge pages the rounding would cost more than the page walks.
  const bool huge = bytes >= 4 * kHugePage;
  const std::size_t alignment = huge ? kHugePage : kLine;
  const std::size_t size = round_up(bytes == 0 ? 1 : bytes, alignment);
  std::shared_ptr<std::byte> memory(static_cast<std::byte*>(std::aligned_alloc(alignment, size)), std::free);
  require(memory != nullptr, ErrorKind::out_of_memory, [&] {
    return ErrorInfo{
        .code = "packed_weights_do_not_fit",
        .what = fmt::format("packing needs {:.2f} GB at once and the system gave none", 1e-9 * double(size)),
        .why = "the packed copy of a layer's experts is one block of memory",
        .todo = "free memory, raise the limit (ulimit -v, cgroup), or give the layer fewer local experts"};
  });
  // A wish: without huge pages everything works, a little slower.
  if (huge) (void)madvise(memory.get(), size, MADV_HUGEPAGE);
  return memory;
}

}  // namespace sluice::cpu
