// SPDX-License-Identifier: Apache-2.0
#include "testing/sample_schemes.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "format/bf16.h"
#include "format/e4m3.h"
#include "format/formats.h"
#include "format/scales.h"

namespace sluice::testing::sample {

namespace {

std::vector<std::byte> bf16_bytes(std::span<const float> values) {
  std::vector<std::uint16_t> halves(values.size());
  std::transform(values.begin(), values.end(), halves.begin(),
                 [](float v) { return format::float_to_bf16(v); });
  return bytes_of(std::span<const std::uint16_t>(halves));
}

std::vector<std::byte> float_bytes(float value) { return bytes_of(std::span<const float>(&value, 1)); }

void add_fp8_blocks(Shard& shard, const std::string& name, const std::string& scale_name,
                    const Drawn& drawn) {
  format::Encoded e = encoded("fp8_block128", drawn);
  const std::vector<std::int64_t> scale_shape{(drawn.rows + 127) / 128, (drawn.cols + 127) / 128};
  shard.add(name + ".weight", DType::f8_e4m3, {drawn.rows, drawn.cols}, std::move(e.codes));
  shard.add(name + scale_name, DType::f32, scale_shape, std::move(e.scales));
}

}  // namespace

Drawn draw_matrix(Shard& shard, std::int64_t rows, std::int64_t cols, double deviation) {
  return {rows, cols, shard.draw.normals(rows * cols, deviation)};
}

void add_bf16(Shard& shard, const std::string& name, const Drawn& drawn) {
  shard.add(name, DType::bf16, {drawn.rows, drawn.cols}, bf16_bytes(drawn.values));
}

void add_drawn_bf16(Shard& shard, const std::string& name, std::vector<std::int64_t> shape,
                    double deviation) {
  const std::int64_t count =
      std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  shard.add(name, DType::bf16, std::move(shape), bf16_bytes(shard.draw.normals(count, deviation)));
}

format::Encoded encoded(std::string_view format, const Drawn& drawn) {
  return encode(*Format::parse(format), drawn.values.data(), drawn.rows, drawn.cols);
}

void add_plain_weight(Shard& shard, const std::string& name, const Drawn& drawn) {
  add_bf16(shard, name + ".weight", drawn);
}

void add_deepseek_fp4(Shard& shard, const std::string& name, const Drawn& drawn) {
  format::Encoded e = encoded("mxfp4", drawn);
  shard.add(name + ".weight", DType::i8, {drawn.rows, drawn.cols / 2}, std::move(e.codes));
  shard.add(name + ".scale", DType::f8_e8m0, {drawn.rows, drawn.cols / 32}, std::move(e.scales));
}

void add_deepseek_fp8(Shard& shard, const std::string& name, const Drawn& drawn) {
  add_fp8_blocks(shard, name, ".scale", drawn);
}

void add_hugging_face_fp8(Shard& shard, const std::string& name, const Drawn& drawn) {
  add_fp8_blocks(shard, name, ".weight_scale_inv", drawn);
}

void add_minimax_mxfp8(Shard& shard, const std::string& name, const Drawn& drawn) {
  format::Encoded e = encoded("mxfp8", drawn);
  shard.add(name + ".weight", DType::f8_e4m3, {drawn.rows, drawn.cols}, std::move(e.codes));
  shard.add(name + ".weight_scale_inv", DType::u8, {drawn.rows, drawn.cols / 32}, std::move(e.scales));
}

void add_deepseek_fp8_e8m0(Shard& shard, const std::string& name, const Drawn& drawn) {
  const std::vector<std::int64_t> scale_shape{(drawn.rows + 127) / 128, (drawn.cols + 127) / 128};
  const auto block_of = [&](std::size_t i) {
    const std::int64_t row = static_cast<std::int64_t>(i) / drawn.cols,
                       col = static_cast<std::int64_t>(i) % drawn.cols;
    return static_cast<std::size_t>(row / 128 * scale_shape[1] + col / 128);
  };
  std::vector<float> largest(static_cast<std::size_t>(scale_shape[0] * scale_shape[1]), 0x1p-20f);
  for (std::size_t i = 0; i < drawn.values.size(); ++i)
    largest[block_of(i)] = std::max(largest[block_of(i)], std::abs(drawn.values[i]));
  std::vector<std::byte> scales, codes;
  for (const float amax : largest)  // rounded up, so that nothing saturates
    scales.push_back(std::byte(127 + static_cast<int>(std::ceil(std::log2(amax / format::kE4m3Max)))));
  for (std::size_t i = 0; i < drawn.values.size(); ++i) {
    const int exponent = std::to_integer<int>(scales[block_of(i)]) - 127;
    codes.push_back(std::byte{format::float_to_e4m3(std::ldexp(drawn.values[i], -exponent))});
  }
  shard.add(name + ".weight", DType::f8_e4m3, {drawn.rows, drawn.cols}, std::move(codes));
  shard.add(name + ".scale", DType::f8_e8m0, scale_shape, std::move(scales));
}

void add_modelopt_nvfp4(Shard& shard, const std::string& name, const Drawn& drawn) {
  format::Encoded e = encoded("nvfp4", drawn);
  shard.add(name + ".weight", DType::u8, {drawn.rows, drawn.cols / 2}, std::move(e.codes));
  shard.add(name + ".weight_scale", DType::f8_e4m3, {drawn.rows, drawn.cols / 16}, std::move(e.scales));
  shard.add(name + ".weight_scale_2", DType::f32, {}, float_bytes(e.matrix.second_scale));
  shard.add(name + ".input_scale", DType::f32, {}, float_bytes(0.01f));
}

void add_modelopt_fp8(Shard& shard, const std::string& name, const Drawn& drawn) {
  format::Encoded e = encoded("fp8_tensor", drawn);
  shard.add(name + ".weight", DType::f8_e4m3, {drawn.rows, drawn.cols}, std::move(e.codes));
  shard.add(name + ".weight_scale", DType::f32, {}, std::move(e.scales));
  shard.add(name + ".input_scale", DType::f32, {}, float_bytes(0.01f));
}

void add_compressed_nvfp4(Shard& shard, const std::string& name, const Drawn& drawn) {
  format::Encoded e = encoded("nvfp4", drawn);
  shard.add(name + ".weight_packed", DType::u8, {drawn.rows, drawn.cols / 2}, std::move(e.codes));
  shard.add(name + ".weight_scale", DType::f8_e4m3, {drawn.rows, drawn.cols / 16}, std::move(e.scales));
  shard.add(name + ".weight_global_scale", DType::f32, {1}, float_bytes(1.0f / e.matrix.second_scale));
}

void add_compressed_mxfp4(Shard& shard, const std::string& name, const Drawn& drawn) {
  format::Encoded e = encoded("mxfp4", drawn);
  shard.add(name + ".weight_packed", DType::u8, {drawn.rows, drawn.cols / 2}, std::move(e.codes));
  shard.add(name + ".weight_scale", DType::u8, {drawn.rows, drawn.cols / 32}, std::move(e.scales));
}

namespace {

/// [rows, groups] BF16 as GPTQ and AWQ have it, [groups, rows].
std::vector<std::byte> transposed_scales(const format::Encoded& e) {
  const std::int64_t rows = e.matrix.rows, groups = format::groups_of_row(e.matrix);
  std::vector<std::uint16_t> scales;
  for (std::int64_t g = 0; g < groups; ++g)
    for (std::int64_t r = 0; r < rows; ++r)
      scales.push_back(format::float_to_bf16(format::scale_at(e.matrix.scales, r, g)));
  return bytes_of(std::span<const std::uint16_t>(scales));
}

format::Encoded integers(const Drawn& drawn, const format::IntegerRecipe& recipe) {
  return format::encode_integers(Formats::of<format::Int4>(), recipe,
                                 {drawn.values.data(), drawn.rows, drawn.cols});
}

}  // namespace

void add_gptq(Shard& shard, const std::string& name, const Drawn& drawn) {
  const std::int64_t rows = drawn.rows, cols = drawn.cols, groups = cols / 32;
  format::Encoded e = integers(drawn, {{.columns = 32, .act_order = true}, format::IntegerFile::gptq});
  const std::vector<std::uint32_t> zeros(static_cast<std::size_t>(groups * rows / 8),
                                         0x77777777);  // 8 minus 1
  shard.add(name + ".g_idx", DType::i32, {cols}, std::move(e.column_groups));
  shard.add(name + ".qweight", DType::i32, {cols / 8, rows}, std::move(e.codes));
  shard.add(name + ".qzeros", DType::i32, {groups, rows / 8},
            bytes_of(std::span<const std::uint32_t>(zeros)));
  shard.add(name + ".scales", DType::bf16, {groups, rows}, transposed_scales(e));
}

void add_awq(Shard& shard, const std::string& name, const Drawn& drawn) {
  const std::int64_t rows = drawn.rows, cols = drawn.cols, groups = cols / 32;
  format::Encoded e = integers(drawn, {{.columns = 32, .zero_points = true}, format::IntegerFile::awq});
  shard.add(name + ".qweight", DType::i32, {cols, rows / 8}, std::move(e.codes));
  shard.add(name + ".qzeros", DType::i32, {groups, rows / 8}, std::move(e.zeros));
  shard.add(name + ".scales", DType::bf16, {groups, rows}, transposed_scales(e));
}

void add_packed_int3(Shard& shard, const std::string& name, const Drawn& drawn) {
  const std::int64_t shape[] = {drawn.rows, drawn.cols};
  format::Encoded e =
      encode(Formats::of<format::Int3>(), {.columns = 32}, drawn.values.data(), drawn.rows, drawn.cols);
  shard.add(name + ".weight_packed", DType::i32, {drawn.rows, drawn.cols * 3 / 32}, std::move(e.codes));
  shard.add(name + ".weight_scale", DType::bf16, {drawn.rows, drawn.cols / 32}, std::move(e.scales));
  shard.add(name + ".weight_shape", DType::i64, {2}, bytes_of(std::span<const std::int64_t>(shape)));
}

}  // namespace sluice::testing::sample
