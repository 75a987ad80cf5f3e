// SPDX-License-Identifier: Apache-2.0
// Packing loses nothing: the identity matrix as input gives every weight back, bit for bit.
#include <cmath>
#include <cstring>

#include "core/bits.h"
#include "experts/cpu/common/memory.h"
#include "experts/cpu/common/pack.h"
#include "experts/cpu/common/packed.h"
#include "format/bf16.h"
#include "format/f16.h"
#include "format/ggml_blocks.h"
#include "format/integers.h"
#include "sluice/error.h"
#include "tests/cpu/subject.h"

namespace sluice::testing {
namespace {

/// A matrix with its own memory.
struct Codes {
  std::vector<std::byte> codes, scales;
  WeightMatrix matrix;
};

/// Every code of the format in turn, with scales that differ from group to group.
Codes all_codes(Format format, std::int64_t rows, std::int64_t cols) {
  const auto& shape = geometry(format);
  const auto scale_shape = format::scale_shape(shape, rows, cols);
  const DType scale_type = shape.scale_bits == 32    ? DType::f32
                           : format.str() == "nvfp4" ? DType::f8_e4m3
                                                     : DType::f8_e8m0;
  const int width = bits(scale_type) / 8;
  const std::int64_t row_bytes = (cols * shape.code_bits + 7) / 8;
  Codes made{.codes = std::vector<std::byte>(rows * row_bytes),
             .scales = std::vector<std::byte>(scale_shape.rows * scale_shape.cols * width),
             .matrix = {.format = format, .rows = rows, .cols = cols}};
  Draw draw(5);
  for (std::byte& byte : made.codes) byte = std::byte(draw.below(256));
  for (std::int64_t i = 0; i < scale_shape.rows * scale_shape.cols; ++i) {
    if (width == 4)
      store(made.scales.data() + 4 * i, static_cast<float>(draw.normal()));
    else
      made.scales[i] = std::byte(draw.below(250));  // of e8m0 not the largest, whose product would overflow
  }
  made.matrix.codes = made.codes.data();
  made.matrix.row_stride = row_bytes;
  made.matrix.col_stride = shape.code_bits / 8;
  made.matrix.scales = {made.scales.data(), scale_type, scale_shape.cols * width, width};
  made.matrix.second_scale = shape.second_scale ? 0.37f : 1.0f;
  return made;
}

/// Random integers as a file lays them out, with f16 or bf16 scales of either sign.
format::Encoded all_integers(Format format, const format::IntegerRecipe& recipe, std::int64_t size) {
  format::Encoded made = make_integers(format, recipe, size, size);
  Draw draw(5);
  const std::int64_t codes = std::int64_t{1} << format::integer_bits(made.matrix);
  for (std::int64_t r = 0; r < size; ++r) {
    for (std::int64_t c = 0; c < size; ++c) set_code(made, r, c, static_cast<unsigned>(draw.below(codes)));
    for (std::int64_t g = 0; g < format::groups_of_row(made.matrix); ++g) {
      const ScalesView& scales = made.matrix.scales;
      store(made.scales.data() + r * scales.row_stride + g * scales.col_stride,
            format::float_to_bf16(static_cast<float>(draw.normal())));
      if (recipe.grouping.zero_points) set_zero(made, r, g, static_cast<unsigned>(draw.below(codes)));
    }
  }
  return made;
}

/// Random bytes as blocks of GGUF, with numbers of either sign.
Codes all_blocks(Format format, std::int64_t size) {
  const format::Geometry& g = geometry(format);
  const format::BlockNumbers numbers = format::block_numbers(format);
  const std::int64_t row_bytes = size / g.block_cols * g.block_bytes;
  Codes made{.codes = std::vector<std::byte>(size * row_bytes),
             .scales = {},
             .matrix = {.format = format, .rows = size, .cols = size, .row_stride = row_bytes}};
  Draw draw(5);
  for (std::byte& byte : made.codes) byte = std::byte(draw.below(256));
  const auto put = [&](std::byte* at) { store(at, format::float_to_f16(static_cast<float>(draw.normal()))); };
  for (std::byte* block = made.codes.data(); block < made.codes.data() + made.codes.size();
       block += g.block_bytes) {
    put(block + numbers.scale);
    if (numbers.minimum >= 0) put(block + numbers.minimum);
  }
  made.matrix.codes = made.codes.data();
  return made;
}

/// Rows that hold no NaN and no infinity; the others multiply zeros to NaN.
bool finite(const std::vector<float>& row) {
  for (float value : row)
    if (!std::isfinite(value)) return false;
  return true;
}

class CpuPacking : public Subject {
 protected:
  /// What comes back of `matrix` as the down matrix of a layer without gate whose intermediate is the
  /// identity: up is the identity and relu2 keeps 0 and 1. Row-major like `matrix`.
  std::vector<float> unpack(const WeightMatrix& matrix) {
    const int size = static_cast<int>(matrix.cols);
    const auto f32 = format_named("f32");
    std::vector<float> identity(static_cast<std::size_t>(size) * size);
    for (int i = 0; i < size; ++i) identity[static_cast<std::size_t>(i) * (size + 1)] = 1.0f;
    const auto up = encode(f32, identity.data(), size, size);

    DrawnLayer layer{.spec = {.hidden = size,
                              .intermediate = size,
                              .experts = 1,
                              .local_experts = 1,
                              .top_k = 1,
                              .formats = {.gate = {},
                                          .up = f32,
                                          .down = matrix.format,
                                          .down_grouping = matrix.integers.grouping},
                              .activation = activation_named("relu2")}};
    layer.experts.push_back({.gate = {}, .up = up.matrix, .down = matrix});
    DrawnCall call{.tokens = size, .dtype = DType::f32};
    call.hidden.resize(identity.size() * sizeof(float));
    std::memcpy(call.hidden.data(), identity.data(), call.hidden.size());
    call.ids.assign(size, 0);
    call.weights.assign(size, 1.0f);

    const std::vector<float> columns = run_once(layer, call);
    std::vector<float> rows(columns.size());
    for (int r = 0; r < size; ++r)
      for (int c = 0; c < size; ++c) rows[r * size + c] = columns[c * size + r];
    return rows;
  }

  void expect_unpacks(const WeightMatrix& matrix) {
    const std::vector<float> got = unpack(matrix);
    std::vector<float> row(static_cast<std::size_t>(matrix.cols));
    int compared = 0;
    for (std::int64_t r = 0; r < matrix.rows; ++r) {
      decode_row(matrix, r, row.data());
      if (!finite(row)) continue;
      ++compared;
      for (std::int64_t c = 0; c < matrix.cols; ++c)
        ASSERT_EQ(got[r * matrix.cols + c], row[c]) << matrix.format.str() << " (" << r << ", " << c << ")";
    }
    EXPECT_GT(compared, matrix.rows / 4);
  }
};

/// Takes NaN and infinity out of drawn codes.
void keep_finite(Codes& made) {
  const std::string_view name = made.matrix.format.str();
  for (std::size_t i = 0; i < made.codes.size(); ++i) {
    std::byte& byte = made.codes[i];
    if (name.starts_with("fp8") || name == "mxfp8") {
      if ((byte & std::byte{0x7F}) == std::byte{0x7F}) byte = std::byte{0x7E};
    } else if (name == "f16" || name == "bf16" || name == "f32") {
      const std::size_t width = made.matrix.col_stride;
      if (i % width == width - 1) byte &= std::byte{0xBF};  // an exponent bit
    }
  }
  if (name == "nvfp4")
    for (std::byte& byte : made.scales)
      if ((byte & std::byte{0x7F}) == std::byte{0x7F}) byte = std::byte{0x7E};
}

TEST_P(CpuPacking, LosesNothing) {
  for (Format format : formats())
    for (int size : {160, 33, 7, 1}) {
      if (is_integer(format)) {
        expect_unpacks(all_integers(format, {}, size).matrix);
        continue;
      }
      if (is_ggml_block(format)) continue;
      Codes made = all_codes(format, size, size);
      keep_finite(made);
      expect_unpacks(made.matrix);
    }
}

TEST_P(CpuPacking, LosesNothingOfBlocks) {
  for (Format format : formats()) {
    if (!is_ggml_block(format)) continue;
    for (int blocks : {1, 3})
      if (const int size = blocks * geometry(format).block_cols; size <= 256)
        expect_unpacks(all_blocks(format, size).matrix);
    // Rows of two blocks that are a slice of rows of three; 512 columns take the portable vectors half a
    // minute.
    if (geometry(format).block_cols > 32 && !subject().name.starts_with("cpu.")) continue;
    const Codes wide = all_blocks(format, 3 * geometry(format).block_cols);
    WeightMatrix slice = wide.matrix;
    slice.codes += geometry(format).block_bytes;
    slice.cols = slice.rows = 2 * geometry(format).block_cols;
    expect_unpacks(slice);
  }
}

TEST_P(CpuPacking, LosesNothingOfIntegers) {
  // Groups of halves of steps, of neither, of one and of several; the last one partial.
  for (Format format : integer_formats()) {
    auto turn = static_cast<unsigned>(geometry(format).code_bits);
    for (int columns : {16, 20, 32, 48, 64}) {
      const Grouping grouping{columns, (turn & 1) != 0, (turn & 2) != 0};
      ++turn;
      SCOPED_TRACE(storage_text(format, grouping));
      expect_unpacks(all_integers(format, {.grouping = grouping}, 72).matrix);
    }
  }
}

TEST_P(CpuPacking, ReadsIntegersOfEveryFile) {
  using enum format::IntegerFile;
  for (Format format : integer_formats())
    for (format::IntegerFile file : {rows, padded_rows, gptq, awq}) {
      const format::IntegerRecipe recipe{{32, true, file == gptq}, file};
      if (can_lay_out(format, recipe, 64, 64)) expect_unpacks(all_integers(format, recipe, 64).matrix);
    }
}

TEST_P(CpuPacking, ReadsStrides) {
  // As gpt-oss stores bf16: transposed, and as a slice of something larger.
  const int size = 40, stride = 100;
  std::vector<std::byte> codes(static_cast<std::size_t>(size) * stride * 2);
  Draw draw(1);
  for (std::size_t i = 0; i < codes.size(); i += 2)
    store(codes.data() + i, format::float_to_bf16(static_cast<float>(draw.normal())));
  expect_unpacks({.format = format_named("bf16"),
                  .rows = size,
                  .cols = size,
                  .codes = codes.data(),
                  .row_stride = 2,
                  .col_stride = 2 * stride});

  // Every other row, as gate and up are interleaved in gpt-oss, the scales with them.
  Codes wide = all_codes(format_named("mxfp4"), 2 * 64, 64);
  WeightMatrix odd = wide.matrix;
  odd.rows = 64;
  odd.codes += odd.row_stride;
  odd.row_stride *= 2;
  odd.scales.data += odd.scales.row_stride;
  odd.scales.row_stride *= 2;
  expect_unpacks(odd);

  Codes bytes = all_codes(format_named("fp8_channel"), 48, 48);
  keep_finite(bytes);
  std::swap(bytes.matrix.row_stride, bytes.matrix.col_stride);
  expect_unpacks(bytes.matrix);
}

TEST_P(CpuPacking, ReadsScaleTypes) {
  const int size = 200;  // 2 x 2 tiles
  for (DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f8_e8m0, DType::u8}) {
    Codes made = all_codes(format_named("fp8_block128"), size, size);
    keep_finite(made);
    const int width = bits(dtype) / 8;
    std::vector<std::byte> scales(4 * width);
    for (int i = 0; i < 4; ++i) {
      const float value = static_cast<float>(1 << i);
      std::byte* at = scales.data() + i * width;
      if (dtype == DType::f32) store(at, value);
      if (dtype == DType::bf16) store(at, format::float_to_bf16(value));
      if (dtype == DType::f16) store(at, format::float_to_f16(value));
      if (width == 1) store(at, static_cast<std::uint8_t>(127 + i));
    }
    made.matrix.scales = {scales.data(), dtype, 2 * width, width};
    expect_unpacks(made.matrix);
  }
}

TEST_P(CpuPacking, TakesTheBytesItSays) {
  for (Format format : formats()) {
    const ExpertsSpec spec = full_spec(format, 128, 96);
    const auto packed = pack(subject(), draw_layer(spec, Numbers::normal, 1), *team_);
    EXPECT_EQ(packed->bytes(), subject().packed_bytes(spec)) << format.str();
  }
}

TEST_P(CpuPacking, KeepsWeightsQuantised) {
  for (Format format : formats()) {
    const ExpertsSpec spec = plain_spec(format, 2880, 2880);
    const double ratio =
        double(subject().packed_bytes(spec)) / double(experts_bytes(spec, spec.local_experts));
    // 2880 is not a multiple of 128: fp8_block128 is padded to 2944 columns, 2.2 %. The 6 bits of Q4_K's and
    // Q5_K's scales and minimums are kept in bytes, 2.8 % and 2.3 %.
    const bool larger = format.str() == "fp8_block128" || format.str() == "q4_k" || format.str() == "q5_k";
    EXPECT_LT(ratio, larger ? 1.03 : 1.01) << format.str();
  }
}

/// Bits that a weight takes, its scale included.
double bits_a_weight(const Backend& backend, const char* format, const Grouping& grouping) {
  const ExpertsSpec spec = grouped(plain_spec(format_named(format), 2880, 2880), grouping);
  return 8 * double(backend.packed_bytes(spec)) / (4.0 * 3 * 2880 * 2880);
}

TEST_P(CpuPacking, WastesNoBitOfIntegers) {
  EXPECT_LE(bits_a_weight(subject(), "int3", {.columns = 32}), 3.52);
  EXPECT_LE(bits_a_weight(subject(), "int3", {.columns = 32, .zero_points = true}), 3.77);
  EXPECT_LE(bits_a_weight(subject(), "int4", {.columns = 128}), 4.14);
  EXPECT_LE(bits_a_weight(subject(), "int4", {.columns = 128, .zero_points = true}), 4.21);
  EXPECT_LE(bits_a_weight(subject(), "int4", {.columns = 128, .act_order = true}), 4.16);
  EXPECT_LE(bits_a_weight(subject(), "int6", {.columns = 16}), 7.02);
  EXPECT_LE(bits_a_weight(subject(), "int7", {}), 7.02);
}

TEST_P(CpuPacking, ReportsProgress) {
  const DrawnLayer layer = draw_layer(plain_spec(format_named("f32"), 512, 512), Numbers::normal, 1);
  std::int64_t last = 0, all = 0;
  int calls = 0;
  (void)subject().pack({.spec = layer.spec,
                        .experts = layer.experts,
                        .owner = {},
                        .executor = *team_,
                        .progress = [&](std::int64_t done, std::int64_t total) {
                          EXPECT_GT(done, last);
                          last = done;
                          all = total;
                          ++calls;
                        }});
  EXPECT_GE(calls, 4 * 3);
  EXPECT_EQ(last, all);
}

INSTANTIATE_TEST_SUITE_P(All, CpuPacking, ::testing::ValuesIn(kSubjects), subject_name);

/// Bf16 weights that instructions for bf16 would not multiply as float32 does are told apart when packed,
/// whichever way a block is packed: turned whole, with columns apart, or with rows missing.
TEST(CpuMarks, TellWhatBf16InstructionsTakeForZero) {
  constexpr int kColumns = 32;
  const auto mark = [](int lanes, std::int64_t rows, std::int64_t apart, std::uint16_t code) {
    std::vector<std::uint16_t> codes(static_cast<std::size_t>(rows * kColumns * apart), 0x3F80);
    codes[static_cast<std::size_t>((rows - 1) * kColumns * apart + 5 * apart)] = code;
    WeightMatrix matrix{.format = format_named("bf16"), .rows = rows, .cols = kColumns};
    matrix.codes = reinterpret_cast<const std::byte*>(codes.data());
    matrix.row_stride = kColumns * apart * 2;
    matrix.col_stride = apart * 2;
    cpu::Stream stream{.columns = kColumns, .pairs = 1};
    stream.format.layout = cpu::kBf16;
    stream.pair_bytes = cpu::kBf16.pair_bytes(lanes, kColumns);
    std::vector<std::byte> pair(stream.pair_bytes);
    cpu::pack_pairs(stream, lanes, {{&matrix, &matrix}}, {0, 1}, pair.data());
    return load<std::int32_t>(pair.data() + cpu::kBf16.factors_offset(lanes, kColumns));
  };
  for (const int lanes : {8, 16})
    for (const std::int64_t rows : {2 * lanes, lanes + 3})
      for (const std::int64_t apart : {1, 2}) {
        SCOPED_TRACE(::testing::Message() << lanes << " lanes, " << rows << " rows, " << apart);
        for (const std::uint16_t code :
             std::initializer_list<std::uint16_t>{0x0000, 0x8000, 0x0080, 0x7F7F, 0xFF7F})
          EXPECT_EQ(mark(lanes, rows, apart, code), 0) << code;
        for (const std::uint16_t code : std::initializer_list<std::uint16_t>{0x0001, 0x807F, 0x7F80, 0x7FC0})
          EXPECT_NE(mark(lanes, rows, apart, code), 0) << code;
      }
}

TEST(CpuMemory, SaysWhatItCouldNotGet) {
  try {
    cpu::allocate(std::size_t{1} << 60);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::out_of_memory);
    EXPECT_NE(std::string(error.what()).find("1152921504.61 GB"), std::string::npos) << error.what();
  }
}

TEST(CpuMemory, IsAligned) {
  for (std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{1000}, std::size_t{9} << 20})
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(cpu::allocate(bytes).get()) % 64, 0u);
}

}  // namespace
}  // namespace sluice::testing
