// SPDX-License-Identifier: Apache-2.0
// Passing over many bytes at the speed of memory: runs of a strided matrix, how often each byte occurs, and a
// hash that says which matrices may be equal.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace sluice::linting {

/// `count` runs of `bytes` bytes, `stride` bytes apart; and that `planes` times, `plane_stride` apart.
struct Runs {
  const std::byte* data = nullptr;
  std::int64_t count = 0, bytes = 0;
  std::ptrdiff_t stride = 0;
  std::int64_t planes = 1;
  std::ptrdiff_t plane_stride = 0;

  /// Calls visit(data, bytes) in pieces small enough to stay in the first cache for a second look. Pieces of
  /// a run are whole units, if the run is.
  template <class Visit>
  void each(Visit visit, std::int64_t unit = 1) const {
    for (std::int64_t plane = 0; plane < planes; ++plane) {
      const std::byte* const begin = data + plane * plane_stride;
      if (stride == bytes)
        pieces(begin, bytes * count, visit, unit);
      else if (bytes <= 8)
        gathered(begin, visit);
      else
        for (std::int64_t run = 0; run < count; ++run) pieces(begin + run * stride, bytes, visit, unit);
    }
  }

 private:
  static constexpr std::int64_t kPiece = 16384;

  template <class Visit>
  static void pieces(const std::byte* begin, std::int64_t length, Visit& visit, std::int64_t unit) {
    const std::int64_t piece = kPiece / unit * unit;
    for (std::int64_t at = 0; at < length; at += piece) visit(begin + at, std::min(piece, length - at));
  }
  /// Single elements with others between them are copied together first.
  template <class Visit>
  void gathered(const std::byte* begin, Visit& visit) const {
    std::array<std::byte, kPiece> piece;
    const std::int64_t room = kPiece / bytes;
    for (std::int64_t first = 0; first < count; first += room) {
      const std::int64_t some = std::min(room, count - first);
      gather(begin + first * stride, some, piece.data());
      visit(static_cast<const std::byte*>(piece.data()), some * bytes);
    }
  }
  void gather(const std::byte* from, std::int64_t runs, std::byte* to) const;
};

/// A grid of elements.
struct Elements {
  std::int64_t rows = 0, cols = 0;
  std::ptrdiff_t row_stride = 0, col_stride = 0;
  int width = 1;  // bytes
};
/// The elements as runs as long as can be, in the order of memory.
Runs runs_of(const std::byte* data, const Elements& elements);
bool same_bytes(const Runs& a, const Runs& b);

/// How often each byte occurs.
class ByteCounts {
 public:
  void add(const std::byte* data, std::int64_t bytes);
  std::array<std::int64_t, 256> sums() const;

 private:
  // Four tables, so that a byte that repeats does not wait for its own count.
  std::array<std::array<std::int64_t, 256>, 4> tables_ = {};
};

/// Equal bytes in equal pieces give equal hashes; the rest is memcmp's business.
class Hash {
 public:
  void add(const std::byte* data, std::int64_t bytes);
  std::uint64_t value() const;

 private:
  std::array<std::uint64_t, 4> lanes_ = {1, 2, 3, 4};
};

/// Tells the system that these bytes will be read; it may fetch them meanwhile.
void will_read(const Runs& runs);

}  // namespace sluice::linting
