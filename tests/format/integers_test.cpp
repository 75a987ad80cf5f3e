// SPDX-License-Identifier: Apache-2.0
// Integers of 2 to 8 bits: every code of every width, every layout of files against packers written here from
// their descriptions (docs/formats/integers.md), groups, zero points, act-order, sizes, and round trips.
#include "format/integers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "core/bits.h"
#include "format/bf16.h"
#include "format/f16.h"
#include "format/formats.h"
#include "format/scales.h"
#include "sluice/error.h"

namespace sluice {
namespace {

using format::can_lay_out;
using format::encode_integers;
using format::IntegerFile;
using format::make_integers;
using format::scale_at;
using Words = std::vector<std::uint32_t>;
using Along = PackedGrid::Along;

Format of_bits(int bits) { return Format::parse("int" + std::to_string(bits)).value(); }

/// [rows, cols] integers, row by row.
struct Grid {
  std::int64_t rows, cols;
  std::vector<unsigned> values;
  unsigned at(std::int64_t r, std::int64_t c) const { return values[static_cast<std::size_t>(r * cols + c)]; }
  Grid transposed() const {
    Grid other{cols, rows, {}};
    for (std::int64_t c = 0; c < cols; ++c)
      for (std::int64_t r = 0; r < rows; ++r) other.values.push_back(at(r, c));
    return other;
  }
};

Grid draw_grid(std::int64_t rows, std::int64_t cols, int bits, unsigned seed) {
  std::mt19937 draw(seed);
  Grid grid{rows, cols, {}};
  for (std::int64_t i = 0; i < rows * cols; ++i)
    grid.values.push_back(static_cast<unsigned>(draw()) % (1u << bits));
  return grid;
}

// The packers. Each gives the words of the rows of a grid, row by row.

/// Bit by bit: bit j of integer i is bit i * bits + j of the row.
Words dense(const Grid& grid, int bits) {
  const std::int64_t words = (grid.cols * bits + 31) / 32;
  Words out(static_cast<std::size_t>(grid.rows * words));
  for (std::int64_t r = 0; r < grid.rows; ++r)
    for (std::int64_t i = 0; i < grid.cols; ++i)
      for (int j = 0; j < bits; ++j) {
        const std::int64_t bit = i * bits + j;
        out[static_cast<std::size_t>(r * words + bit / 32)] |= (grid.at(r, i) >> j & 1u) << bit % 32;
      }
  return out;
}

/// Whole integers only, from the lowest bits.
Words padded(const Grid& grid, int bits) {
  Words out;
  for (std::int64_t r = 0; r < grid.rows; ++r)
    for (std::int64_t i = 0; i < grid.cols;) {
      std::uint32_t word = 0;
      for (int shift = 0; shift + bits <= 32 && i < grid.cols; shift += bits, ++i)
        word |= grid.at(r, i) << shift;
      out.push_back(word);
    }
  return out;
}

/// "nibble i of a word is column 8w + [0,2,4,6,1,3,5,7][i]".
Words awq(const Grid& grid) {
  const int order[] = {0, 2, 4, 6, 1, 3, 5, 7};
  Words out;
  for (std::int64_t r = 0; r < grid.rows; ++r)
    for (std::int64_t w = 0; w < grid.cols / 8; ++w) {
      std::uint32_t word = 0;
      for (int i = 0; i < 8; ++i) word |= grid.at(r, 8 * w + order[i]) << (4 * i);
      out.push_back(word);
    }
  return out;
}

/// Words [rows, n] as [n, rows].
Words transposed(const Words& words, std::int64_t rows) {
  const std::int64_t n = std::ssize(words) / rows;
  Words out;
  for (std::int64_t w = 0; w < n; ++w)
    for (std::int64_t r = 0; r < rows; ++r) out.push_back(words[static_cast<std::size_t>(r * n + w)]);
  return out;
}

const std::byte* bytes_of(const Words& words) { return reinterpret_cast<const std::byte*>(words.data()); }

std::vector<std::uint8_t> row_of(const WeightMatrix& matrix, std::int64_t row) {
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(matrix.cols));
  format::codes_of_row(matrix, row, codes.data());
  return codes;
}

void expect_codes(const WeightMatrix& matrix, const Grid& want) {
  for (std::int64_t r = 0; r < want.rows; ++r) {
    const std::vector<std::uint8_t> codes = row_of(matrix, r);
    for (std::int64_t c = 0; c < want.cols; ++c)
      ASSERT_EQ(codes[static_cast<std::size_t>(c)], want.at(r, c))
          << matrix.format.str() << " row " << r << ", column " << c;
  }
}

WeightMatrix view(int bits, const Grid& grid, const Words& words, PackedGrid how) {
  return {.format = of_bits(bits),
          .rows = grid.rows,
          .cols = grid.cols,
          .codes = bytes_of(words),
          .integers = {.codes = how}};
}

TEST(IntegerPacking, DenseRows) {
  for (int bits = 2; bits <= 8; ++bits)
    for (const std::int64_t cols : {1, 10, 11, 32, 37, 64, 96}) {
      const Grid grid = draw_grid(5, cols, bits, 1);
      const Words words = dense(grid, bits);
      const std::int64_t line = format::words_of_line(Packing::dense, bits, cols);
      ASSERT_EQ(std::ssize(words), 5 * line);
      expect_codes(view(bits, grid, words, {.line_stride = 4 * line}), grid);
    }
}

TEST(IntegerPacking, PaddedRows) {
  for (int bits = 2; bits <= 8; ++bits)
    for (const std::int64_t cols : {1, 10, 11, 32, 37, 64, 96}) {
      const Grid grid = draw_grid(5, cols, bits, 2);
      const Words words = padded(grid, bits);
      const std::int64_t line = format::words_of_line(Packing::padded, bits, cols);
      ASSERT_EQ(std::ssize(words), 5 * line);
      expect_codes(view(bits, grid, words, {.packing = Packing::padded, .line_stride = 4 * line}), grid);
    }
}

/// qweight of GPTQ is [cols * bits / 32, rows]: word r of column n holds rows k from r * 32 / bits.
TEST(IntegerPacking, GptqWords) {
  for (int bits = 2; bits <= 8; ++bits) {
    const Grid grid = draw_grid(7, 96, bits, 3);
    const Words words = transposed(dense(grid, bits), 7);
    expect_codes(view(bits, grid, words, {.line_stride = 4, .word_stride = 4 * 7}), grid);
  }
}

/// The words of models.md: of 3 bits, values 10 and 21 straddle.
TEST(IntegerPacking, ThreeBitsStraddle) {
  Grid grid{1, 32, std::vector<unsigned>(32)};
  grid.values[10] = 7;
  grid.values[21] = 5;
  const Words words = dense(grid, 3);
  EXPECT_EQ(words, (Words{0xC0000000u, 0x80000001u, 0x00000002u}));
  expect_codes(view(3, grid, words, {.line_stride = 12}), grid);
}

/// qweight of AWQ is [cols, rows / 8].
TEST(IntegerPacking, AwqWords) {
  const Grid grid = draw_grid(24, 10, 4, 4);
  const Words words = awq(grid.transposed());
  expect_codes(view(4, grid, words, {.packing = Packing::awq, .along = Along::column, .line_stride = 4 * 3}),
               grid);
  // One word, spelled out: rows 0 to 7 of column 0.
  const Words one{0x76543210u};
  const WeightMatrix eight{.format = of_bits(4),
                           .rows = 8,
                           .cols = 1,
                           .codes = bytes_of(one),
                           .integers = {.codes = {.packing = Packing::awq, .along = Along::column}}};
  const unsigned want[] = {0, 4, 1, 5, 2, 6, 3, 7};
  for (std::int64_t r = 0; r < 8; ++r) EXPECT_EQ(row_of(eight, r)[0], want[r]);
}

/// A matrix with everything, by hand: 6 rows, 40 columns in groups of 16.
struct Made {
  int bits;
  Grid codes, zeros;
  Words code_words, zero_words;
  std::vector<std::uint16_t> scales;  // BF16, [6, 3]
  std::vector<std::int32_t> order;
  WeightMatrix matrix;

  Made(int width, bool act_order, int offset)
      : bits(width),
        codes(draw_grid(6, 40, width, 5)),
        zeros(draw_grid(6, 3, width, 6)),
        code_words(dense(codes, width)),
        matrix{.format = of_bits(width), .rows = 6, .cols = 40} {
    Grid stored = zeros.transposed();  // packed along the rows
    for (unsigned& zero : stored.values) zero = (zero - static_cast<unsigned>(offset)) & ((1u << bits) - 1);
    zero_words = dense(stored, bits);
    for (int i = 0; i < 18; ++i)
      scales.push_back(format::float_to_bf16(std::ldexp(i % 2 == 0 ? 1.25f : -0.75f, i % 5 - 3)));
    std::mt19937 draw(7);
    for (int c = 0; c < 40; ++c) order.push_back(c / 16);
    if (act_order) std::shuffle(order.begin(), order.end(), draw);
    matrix.codes = bytes_of(code_words);
    matrix.scales = {reinterpret_cast<const std::byte*>(scales.data()), DType::bf16, 6, 2};
    matrix.integers = {
        .grouping = {.columns = 16, .zero_points = true, .act_order = act_order},
        .codes = {.line_stride = 4 * std::ssize(code_words) / 6},
        .zeros = bytes_of(zero_words),
        .zeros_grid = {.along = Along::column, .line_stride = 4 * std::ssize(zero_words) / 3},
        .zero_offset = offset,
        .column_groups = act_order ? reinterpret_cast<const std::byte*>(order.data()) : nullptr};
  }
};

TEST(Integers, ValueIsCodeMinusZeroTimesScale) {
  for (int bits = 2; bits <= 8; ++bits)
    for (const bool act_order : {false, true})
      for (const int offset : {0, 1}) {
        const Made made(bits, act_order, offset);
        std::vector<float> single(40);
        std::vector<double> exact(40);
        std::vector<std::uint8_t> zeros(3);
        for (std::int64_t r = 0; r < 6; ++r) {
          decode_row(made.matrix, r, single.data());
          decode_row(made.matrix, r, exact.data());
          format::zeros_of_row(made.matrix, r, zeros.data());
          for (std::int64_t g = 0; g < 3; ++g)
            ASSERT_EQ(zeros[static_cast<std::size_t>(g)], made.zeros.at(r, g))
                << bits << " bits, offset " << offset;
          for (std::int64_t c = 0; c < 40; ++c) {
            const auto at = static_cast<std::size_t>(c);
            const std::int32_t group = made.order[at];
            const double scale = format::bf16_to_float(made.scales[static_cast<std::size_t>(r * 3 + group)]);
            const double want = (double{1} * made.codes.at(r, c) - made.zeros.at(r, group)) * scale;
            ASSERT_EQ(exact[at], want) << bits << " bits, row " << r << ", column " << c;
            ASSERT_EQ(single[at], static_cast<float>(want));
          }
        }
      }
}

/// Every code with every zero point, and without zero points the middle.
TEST(Integers, EveryCodeOfEveryWidth) {
  for (int bits = 2; bits <= 8; ++bits) {
    const int count = 1 << bits;
    Grid grid{1, count, {}};
    for (int code = 0; code < count; ++code) grid.values.push_back(static_cast<unsigned>(code));
    const Words words = dense(grid, bits);
    const std::uint16_t scale = format::float_to_f16(0.0117f);
    WeightMatrix matrix = view(bits, grid, words, {.line_stride = 4 * std::ssize(words)});
    matrix.scales = {reinterpret_cast<const std::byte*>(&scale), DType::f16, 0, 0};
    std::vector<double> row(static_cast<std::size_t>(count));
    decode_row(matrix, 0, row.data());
    for (int code = 0; code < count; ++code)
      EXPECT_EQ(row[static_cast<std::size_t>(code)],
                (code - count / 2) * double{format::f16_to_float(scale)});
    for (int zero = 0; zero < count; ++zero) {
      const std::uint32_t stored = static_cast<std::uint32_t>(zero);
      matrix.integers.grouping.zero_points = true;
      matrix.integers.zeros = reinterpret_cast<const std::byte*>(&stored);
      matrix.integers.zeros_grid = {.along = Along::column, .line_stride = 4};
      decode_row(matrix, 0, row.data());
      for (int code = 0; code < count; ++code)
        ASSERT_EQ(row[static_cast<std::size_t>(code)], (code - zero) * double{format::f16_to_float(scale)});
    }
  }
}

/// v1 of GPTQ stores a zero point of 0 as the largest code.
TEST(Integers, AStoredZeroMinusOneWrapsAround) {
  for (int bits = 2; bits <= 8; ++bits) {
    const std::uint32_t stored = (1u << bits) - 1, code = 0;
    const WeightMatrix matrix{.format = of_bits(bits),
                              .rows = 1,
                              .cols = 1,
                              .codes = reinterpret_cast<const std::byte*>(&code),
                              .integers = {.grouping = {.zero_points = true},
                                           .codes = {.line_stride = 4},
                                           .zeros = reinterpret_cast<const std::byte*>(&stored),
                                           .zeros_grid = {.along = Along::column, .line_stride = 4},
                                           .zero_offset = 1}};
    EXPECT_EQ(format::zero_of(matrix, 0, 0), 0u);
  }
}

TEST(Integers, ScalesOfFloat32AreRoundedOnce) {
  const Grid grid = draw_grid(1, 32, 8, 9);
  const Words words = dense(grid, 8);
  const float scale = 0.013f;
  WeightMatrix matrix = view(8, grid, words, {.line_stride = 32});
  matrix.scales = {reinterpret_cast<const std::byte*>(&scale), DType::f32, 0, 0};
  std::vector<float> single(32);
  std::vector<double> exact(32);
  decode_row(matrix, 0, single.data());
  decode_row(matrix, 0, exact.data());
  for (std::int64_t c = 0; c < 32; ++c) {
    const double want = (static_cast<int>(grid.at(0, c)) - 128) * double{scale};
    EXPECT_EQ(exact[static_cast<std::size_t>(c)], want);
    EXPECT_EQ(single[static_cast<std::size_t>(c)], static_cast<float>(want));
  }
}

TEST(Integers, PartOfARow) {
  const Made made(3, false, 0);
  std::vector<std::uint8_t> part(9);
  format::codes_of_row(made.matrix, {.row = 4, .first = 17, .count = 9}, part.data());
  for (std::int64_t i = 0; i < 9; ++i) EXPECT_EQ(part[static_cast<std::size_t>(i)], made.codes.at(4, 17 + i));
}

TEST(Integers, SizesCountScalesZeroPointsAndOrder) {
  const auto bytes = [](int bits, Grouping grouping, std::int64_t rows, std::int64_t cols) {
    return format::matrix_bytes(geometry(of_bits(bits), grouping), rows, cols);
  };
  EXPECT_EQ(bytes(4, {}, 192, 256), 192 * (128 + 2));
  EXPECT_EQ(bytes(4, {.columns = 128}, 192, 256), 192 * (128 + 4));
  EXPECT_EQ(bytes(4, {.columns = 128}, 192, 320), 192 * (160 + 6)) << "a partial last group";
  EXPECT_EQ(bytes(4, {.columns = 128, .zero_points = true}, 192, 256), 192 * (128 + 4 + 1));
  EXPECT_EQ(bytes(4, {.columns = 128, .act_order = true}, 192, 256), 192 * (128 + 4) + 4 * 256);
  EXPECT_EQ(bytes(3, {.columns = 32}, 64, 4096), 64 * (1536 + 256)) << "3.5 bits a weight";
  EXPECT_EQ(bytes(3, {}, 1, 10), 4 + 2) << "a row is whole words";
  EXPECT_EQ(bytes(8, {.columns = 16}, 10, 64), 10 * (64 + 8));
  // Other formats do not heed it.
  EXPECT_EQ(
      format::matrix_bytes(geometry(*Format::parse("mxfp4"), {.columns = 16, .zero_points = true}), 1, 32),
      17);
  MatrixFormats formats{.gate = of_bits(4), .up = of_bits(4), .down = of_bits(8)};
  formats.gate_grouping = formats.up_grouping = {.columns = 64, .zero_points = true};
  const ExpertsSpec spec{.hidden = 256,
                         .intermediate = 128,
                         .experts = 2,
                         .local_experts = 2,
                         .top_k = 1,
                         .formats = formats,
                         .activation = Activation::parse("silu").value()};
  EXPECT_EQ(experts_bytes(spec, 2), 2 * (2 * 128 * (128 + 8 + 2) + 256 * (128 + 2)));
}

TEST(Integers, WordsForPeople) {
  const Format int4 = of_bits(4), bf16 = *Format::parse("bf16");
  EXPECT_EQ(storage_text(int4, {}), "int4 row");
  EXPECT_EQ(storage_text(int4, {.columns = 64, .zero_points = true, .act_order = true}),
            "int4 g64, zero points, act-order");
  EXPECT_EQ(storage_text({.gate = bf16, .up = bf16, .down = bf16}), "bf16");
  EXPECT_EQ(storage_text({.gate = {}, .up = int4, .down = int4, .up_grouping = {.columns = 32}}),
            "int4 g32/int4 row");
}

const IntegerFile kFiles[] = {IntegerFile::rows, IntegerFile::padded_rows, IntegerFile::gptq,
                              IntegerFile::awq};

/// What encode writes is what the packers above write.
TEST(IntegerEncoding, LayoutsAreThoseOfTheFiles) {
  const Grouping grouping{.columns = 32, .zero_points = true};
  for (int bits = 2; bits <= 8; ++bits)
    for (const IntegerFile file : kFiles) {
      if (!can_lay_out(of_bits(bits), {grouping, file}, 64, 96)) continue;
      const Grid codes = draw_grid(64, 96, bits, 11), zeros = draw_grid(64, 3, bits, 12);
      format::Encoded encoded = make_integers(of_bits(bits), {grouping, file}, 64, 96);
      for (std::int64_t r = 0; r < 64; ++r) {
        for (std::int64_t c = 0; c < 96; ++c) set_code(encoded, r, c, codes.at(r, c));
        for (std::int64_t g = 0; g < 3; ++g) set_zero(encoded, r, g, zeros.at(r, g));
      }
      Grid minus_one = zeros.transposed();
      for (unsigned& zero : minus_one.values) zero = (zero - 1) & ((1u << bits) - 1);
      Words want, want_zeros;
      if (file == IntegerFile::rows) {
        want = dense(codes, bits);
        want_zeros = transposed(dense(zeros.transposed(), bits), 3);
      } else if (file == IntegerFile::padded_rows) {
        want = padded(codes, bits);
        want_zeros = transposed(padded(zeros.transposed(), bits), 3);
      } else if (file == IntegerFile::gptq) {
        want = transposed(dense(codes, bits), 64);
        want_zeros = dense(minus_one, bits);
      } else {
        want = awq(codes.transposed());
        want_zeros = awq(zeros.transposed());
      }
      ASSERT_EQ(encoded.codes.size(), 4 * want.size());
      EXPECT_EQ(std::memcmp(encoded.codes.data(), want.data(), encoded.codes.size()), 0) << bits;
      ASSERT_EQ(encoded.zeros.size(), 4 * want_zeros.size());
      EXPECT_EQ(std::memcmp(encoded.zeros.data(), want_zeros.data(), encoded.zeros.size()), 0) << bits;
      expect_codes(encoded.matrix, codes);
    }
}

TEST(IntegerEncoding, ErrorsAreAtMostHalfAStep) {
  std::mt19937 draw(3);
  std::normal_distribution<float> normal(0.3f, 1);
  std::vector<float> values(16 * 160);
  for (float& value : values) value = normal(draw);
  for (int bits = 2; bits <= 8; ++bits)
    for (const int columns : {0, 16, 64, 256})
      for (const bool zero_points : {false, true})
        for (const bool act_order : {false, true})
          for (const IntegerFile file : kFiles) {
            const Grouping grouping{.columns = columns, .zero_points = zero_points, .act_order = act_order};
            if (!can_lay_out(of_bits(bits), {grouping, file}, 16, 160)) continue;
            const format::Encoded encoded =
                encode_integers(of_bits(bits), {grouping, file}, {values.data(), 16, 160});
            std::vector<double> row(160);
            for (std::int64_t r = 0; r < 16; ++r) {
              decode_row(encoded.matrix, r, row.data());
              for (std::int64_t c = 0; c < 160; ++c) {
                const double scale =
                    scale_at(encoded.matrix.scales, r, format::group_of_column(encoded.matrix, c));
                // A zero point is rounded, too, and a scale to 8 bits: 2^-9 of up to 2^bits steps.
                const double most = (zero_points ? 1.0 : 0.5) + std::ldexp(1.0, bits - 9) + 1e-6;
                ASSERT_LE(std::abs(row[static_cast<std::size_t>(c)] -
                                   values[static_cast<std::size_t>(r * 160 + c)]),
                          most * scale)
                    << bits << " bits, groups of " << columns;
              }
            }
          }
}

TEST(IntegerEncoding, ActOrderDealsOutEveryColumnOnce) {
  for (const std::int64_t cols : {32, 40, 96, 255, 256})
    for (const int group : {16, 32, 64}) {
      const format::Encoded encoded =
          make_integers(of_bits(4), {.grouping = {.columns = group, .act_order = true}}, 1, cols);
      std::vector<int> members(static_cast<std::size_t>(format::groups_of_row(encoded.matrix)));
      bool monotone = true;
      for (std::int64_t c = 0; c < cols; ++c) {
        const std::int64_t its = format::group_of_column(encoded.matrix, c);
        ++members.at(static_cast<std::size_t>(its));
        monotone = monotone && (c == 0 || its >= format::group_of_column(encoded.matrix, c - 1));
      }
      EXPECT_TRUE(!monotone || cols <= group);
      for (std::size_t g = 0; g + 1 < members.size(); ++g) EXPECT_EQ(members[g], group);
    }
}

TEST(IntegerEncoding, OtherFormatsHaveGroupsOfTheirOwn) {
  const float one = 1;
  try {
    encode(*Format::parse("bf16"), {.columns = 1}, &one, 1, 1);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.info().code, "not_integers");
  }
}

}  // namespace
}  // namespace sluice
