// SPDX-License-Identifier: Apache-2.0
// Layers whose numbers are written down one by one, in any format, so that the right answer of a public
// report can be computed by hand. What is not written down is zero.
//
// Toy A of the reports: x is one-hot, gate and up have a number in column 0 of some rows, down is the
// identity, so output j is activation(gate_j, up_j). Row i of a list lands at j = 32 i, in a group of its
// own.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "activation/activation.h"
#include "experts/backend.h"
#include "format/formats.h"
#include "sluice/layer.h"

namespace sluice::reports {

inline constexpr Format kBf16 = Formats::of<format::Bf16>();
inline constexpr Format kMxfp4 = Formats::of<format::Mxfp4>();
inline constexpr Format kNvfp4 = Formats::of<format::Nvfp4>();
inline constexpr Format kFp8Block = Formats::of<format::Fp8Block128>();
inline constexpr Format kFp8Channel = Formats::of<format::Fp8Channel>();
inline constexpr Format kFp8Tensor = Formats::of<format::Fp8Tensor>();
inline constexpr Format kInt4 = Formats::of<format::Int4>();
inline constexpr Format kInt8 = Formats::of<format::Int8>();
inline constexpr Activation kSilu = Activations::of<activation::Silu>();
inline constexpr Activation kSiluThenClamp = Activations::of<activation::SiluThenClamp>();
inline constexpr Activation kRelu2 = Activations::of<activation::Relu2>();
/// gpt-oss's numbers.
inline constexpr ActivationParams kSwigluOai{.limit = 7, .slope = 1.702f, .shift = 1};

/// Every format in which a number can be written down by itself: all but GGUF's blocks, whose scales are one
/// another's.
std::vector<Format> all_formats();
/// True when a number of this size is one code times one scale of the format (or the format is plain).
bool holds(Format format, double value);

struct Entry {
  std::int64_t row, col;
  double value;
};

struct Size {
  std::int64_t rows, cols;
};

/// Zeros with scales of 1, to be filled in code by code.
format::Encoded blank(Format format, Size size, const Grouping& grouping = {});
/// Stores a whole byte, or half of one in a format of 4 bits.
void put_code(format::Encoded& encoded, std::int64_t row, std::int64_t col, unsigned code);
/// Stores scale (i, j), which must be a number of its type.
void put_scale(format::Encoded& encoded, std::int64_t i, std::int64_t j, float scale);
/// The matrix with these numbers. Throws std::logic_error when the format does not hold them exactly.
format::Encoded matrix(Format format, Size size, const std::vector<Entry>& entries,
                       const Grouping& grouping = {});
std::vector<Entry> identity(std::int64_t size);

/// What an expert computes with.
struct Expert {
  std::vector<Entry> gate, up, down;
  std::vector<float> gate_bias = {}, up_bias = {}, down_bias = {};
};

struct Shape {
  int hidden = 128, intermediate = 128, experts = 1, top_k = 1;
};

/// A layer that can be run: the weights own their memory.
struct Toy {
  LayerSpec spec;
  LayerWeights weights;

  const ExpertsSpec& routed() const { return spec.routed; }
};

/// Integers have a scale for 32 columns.
LayerSpec spec_of(Format format, Activation activation, const ActivationParams& params = {},
                  const Shape& shape = {});
/// Biases of the spec follow from the first expert's.
Toy make(LayerSpec spec, const std::vector<Expert>& routed, const Expert* shared = nullptr);
/// Keeps `more` alive as long as the toy's weights.
void keep(Toy& toy, std::shared_ptr<const void> more);
/// A shared matrix for direct use in `weights`.
std::shared_ptr<format::Encoded> shared(format::Encoded encoded);

/// Rows `first`, `first` + 2, ... of a matrix whose scales are for single rows or for all.
WeightMatrix every_second_row(const WeightMatrix& both, std::int64_t first);
/// The same layer with the rows of gate and up taking turns in one matrix, as gpt-oss stores them.
Toy make_interleaved(const LayerSpec& spec, const Expert& expert);

/// Gate and up of Toy A.
struct Pair {
  double gate, up;
};
Expert toy_expert(const std::vector<Pair>& rows, int hidden = 128);
/// A layer of one matrix: mid is (1, 0, 0, ...), so output j is down[j][0] times the token's first number
/// squared.
Toy down_probe(std::shared_ptr<format::Encoded> down);

/// Experts whose output 0 is the token's first number, times `factor` of the up matrix: the second number of
/// the token, 1, opens a gate of 64, whose sigmoid is 1.
Expert linear_expert(double factor = 1);
/// Backends of this machine whose plan takes the layer, but for those that round activations: reports are
/// about numbers that those would not keep. Those that do not must say why, and if there is none the test
/// fails.
std::vector<const Backend*> fitting(const LayerSpec& spec, const std::vector<CallMode>& calls = {});
Plan plan_on(const Backend& backend, const LayerSpec& spec, const std::vector<CallMode>& calls = {});
Layer layer_on(const Backend& backend, const Toy& toy, int threads = 2,
               const std::vector<CallMode>& calls = {});

/// A call. Without ids and logits every token takes experts 0 to top_k - 1 with weight 1.
struct Call {
  int tokens = 1;
  std::vector<float> hidden;  // [tokens, hidden]
  std::vector<std::int32_t> ids = {};
  std::vector<float> weights = {};
  std::vector<float> logits = {};
  std::span<const LoraAdapter* const> adapters = {};
  std::vector<std::int32_t> adapter_ids = {};
};

struct Output {
  std::vector<float> experts, block;
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
  bool operator==(const Output&) const = default;
};

/// x[0] is `value` in every token.
Call one_hot(int hidden, int tokens = 1, float value = 1);
/// Tokens (x, 1, 0, ...) for these x.
Call linear_call(const std::vector<float>& x, int hidden = 128);
/// `at_once` tokens at a time; 0: all.
Output run(const Layer& layer, const Call& call, int at_once = 0);
/// The same in a workspace of the caller's.
Output run_in(const Layer& layer, const Call& call, std::span<std::byte> workspace);
Output run(const Backend& backend, const Toy& toy, const Call& call);

/// Within the four decimals of the reports and float32.
::testing::AssertionResult near(double got, double want);

/// A row of Toy A and its right answer. MXFP4 holds 1 and 1.5 times a power of two: where the numbers are
/// others, `mx` has the same answer, or is left out of that format.
struct Row {
  double gate, up, want;
  std::optional<Pair> mx = {};
};
/// Toy A with these rows on every backend and in every format that holds them; other outputs are zero.
void expect_rows(Activation activation, const ActivationParams& params, const std::vector<Row>& rows);

/// Expects `body` to throw an Error that says all of `parts`; its code.
std::string refused(const std::function<void()>& body, std::initializer_list<const char*> parts = {});

}  // namespace sluice::reports
