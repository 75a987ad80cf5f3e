// SPDX-License-Identifier: Apache-2.0
#include "lint/bytes.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "core/bits.h"

namespace sluice::linting {
namespace {

constexpr std::uint64_t kFactor = 0x9E3779B97F4A7C15u;

std::uint64_t mixed(std::uint64_t lane, std::uint64_t word) {
  const std::uint64_t product = (lane ^ word) * kFactor;
  return product ^ product >> 29;
}

}  // namespace

void Runs::gather(const std::byte* from, std::int64_t runs, std::byte* to) const {
  const auto all = [&](auto width) {
    for (std::int64_t run = 0; run < runs; ++run) std::memcpy(to + run * width, from + run * stride, width);
  };
  if (bytes == 1)
    all(std::integral_constant<std::size_t, 1>());
  else if (bytes == 2)
    all(std::integral_constant<std::size_t, 2>());
  else if (bytes == 4)
    all(std::integral_constant<std::size_t, 4>());
  else
    all(static_cast<std::size_t>(bytes));
}

Runs runs_of(const std::byte* data, const Elements& e) {
  if (e.col_stride == e.width) return {data, e.rows, e.cols * e.width, e.row_stride};
  if (e.row_stride == e.width) return {data, e.cols, e.rows * e.width, e.col_stride};
  if (std::abs(e.row_stride) < std::abs(e.col_stride))
    return {data, e.rows, e.width, e.row_stride, e.cols, e.col_stride};
  return {data, e.cols, e.width, e.col_stride, e.rows, e.row_stride};
}

bool same_bytes(const Runs& a, const Runs& b) {
  if (a.count != b.count || a.bytes != b.bytes || a.planes != b.planes) return false;
  for (std::int64_t plane = 0; plane < a.planes; ++plane)
    for (std::int64_t run = 0; run < a.count; ++run)
      if (std::memcmp(a.data + plane * a.plane_stride + run * a.stride,
                      b.data + plane * b.plane_stride + run * b.stride,
                      static_cast<std::size_t>(a.bytes)) != 0)
        return false;
  return true;
}

void ByteCounts::add(const std::byte* data, std::int64_t bytes) {
  std::int64_t at = 0;
  for (; at + 8 <= bytes; at += 8) {
    const auto eight = load<std::uint64_t>(data + at);
    for (int i = 0; i < 8; ++i) ++tables_[static_cast<std::size_t>(i % 4)][eight >> (8 * i) & 255u];
  }
  for (; at < bytes; ++at) ++tables_[0][static_cast<std::size_t>(data[at])];
}

std::array<std::int64_t, 256> ByteCounts::sums() const {
  std::array<std::int64_t, 256> all = {};
  for (const auto& table : tables_)
    for (std::size_t i = 0; i < all.size(); ++i) all[i] += table[i];
  return all;
}

void Hash::add(const std::byte* data, std::int64_t bytes) {
  std::int64_t at = 0;
  auto lanes = lanes_;
  for (; at + 32 <= bytes; at += 32)
    for (std::size_t i = 0; i < 4; ++i)
      lanes[i] = mixed(lanes[i], load<std::uint64_t>(data + at + 8 * static_cast<std::int64_t>(i)));
  for (; at < bytes; ++at) lanes[0] = mixed(lanes[0], static_cast<std::uint64_t>(data[at]) + 1);
  lanes_ = lanes;
}

std::uint64_t Hash::value() const {
  std::uint64_t all = 0;
  for (const std::uint64_t lane : lanes_) all = mixed(all, lane);
  return all;
}

void will_read(const Runs& runs) {
  if (runs.count == 0) return;
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(runs.data) / page * page;
  const auto end = reinterpret_cast<std::uintptr_t>(runs.data + (runs.planes - 1) * runs.plane_stride +
                                                    (runs.count - 1) * runs.stride + runs.bytes);
  static_cast<void>(::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_WILLNEED));  // advice only
}

}  // namespace sluice::linting
