// SPDX-License-Identifier: Apache-2.0
// Layers of drawn numbers for the tests of the CPU backends, and one call of a backend through its own
// contract.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "experts/backend.h"
#include "format/geometry.h"
#include "testing/draw.h"

namespace sluice::testing {

/// A backend of the build, or one of tests/cpu/portable.h.
const Backend& backend_named(std::string_view name);
/// Empty when this machine can run the backend, otherwise the reason: "this machine lacks avx512f".
std::string why_not(const Backend& backend);
/// All that the tests run over.
inline constexpr const char* kSubjects[] = {"cpu.avx2",      "cpu.avx512", "cpu.avx512_bf16", "cpu.amx",
                                            "cpu.amx_tiles", "portable.8", "portable.16"};

/// A set of experts that owns its weights.
struct DrawnLayer {
  ExpertsSpec spec;
  std::vector<ExpertWeights> experts = {};
  std::vector<std::unique_ptr<format::Encoded>> matrices = {};
  std::vector<std::unique_ptr<std::vector<float>>> biases = {};

  /// The view of matrix `index` that `experts` has.
  WeightMatrix& view(std::size_t index);
};

/// `exact`: weights -1, 0 and 1 with scales of 1/2, 1 and 2, inputs -3 to 3, so that with an activation that
/// keeps them so all sums are exact in float32 in any order. `normal`: normal numbers through the format's
/// own encoder.
enum class Numbers { exact, normal };

/// silu, no features, all matrices of one format, 4 experts of which 2 are chosen. Sizes are rounded up to
/// whole blocks of GGUF.
ExpertsSpec plain_spec(Format format, int hidden, int intermediate);
/// The same with everything a layer can ask for beside an expert map: biases, limit, slope, shift. The slope
/// is so steep that silu is max(x, 0): exact numbers stay exact.
ExpertsSpec full_spec(Format format, int hidden, int intermediate);
Format format_named(std::string_view name);
Activation activation_named(std::string_view name);

/// The same with one grouping for all of its matrices, which must be of integers.
ExpertsSpec grouped(ExpertsSpec spec, const Grouping& grouping);

DrawnLayer draw_layer(const ExpertsSpec& spec, Numbers numbers, std::uint64_t seed);
/// Stores the scales of matrix `index` in another type, rounded to it; of all matrices.
void retype_scales(DrawnLayer& layer, std::size_t index, DType dtype);
void retype_scales(DrawnLayer& layer, DType dtype);
/// Deals the columns of matrix `index`, which has act-order, out to its groups at random: of no size that
/// anybody declared.
void deal_at_random(DrawnLayer& layer, std::size_t index, Draw& draw);

struct DrawnCall {
  int tokens = 0;
  DType dtype = DType::bf16;
  std::vector<std::byte> hidden = {};
  std::vector<std::int32_t> ids = {};
  std::vector<float> weights = {};
  std::vector<std::int32_t> expert_map = {};
  std::ptrdiff_t row_stride = 0;  // in bytes; 0: rows lie close together

  RowsView rows(const ExpertsSpec& spec) const;
  Routing routing(const ExpertsSpec& spec) const;
  /// Stores an input, rounded to the call's type.
  void set(const ExpertsSpec& spec, int token, int column, float value);
};

/// bf16 inputs, distinct expert ids a token, weights that are powers of two for exact numbers.
DrawnCall draw_call(const ExpertsSpec& spec, int tokens, Numbers numbers, std::uint64_t seed);
/// The same inputs in another type (f16, f32).
DrawnCall retype(const ExpertsSpec& spec, const DrawnCall& call, DType dtype);
/// The same inputs with rows that far apart, and NaN in between.
DrawnCall spread(const ExpertsSpec& spec, const DrawnCall& call, std::ptrdiff_t row_stride);
/// A call of only that token.
DrawnCall one_token(const ExpertsSpec& spec, const DrawnCall& call, int token);

std::unique_ptr<PackedExperts> pack(const Backend& backend, const DrawnLayer& layer, Executor& executor);
/// One call; [tokens, hidden]. The output starts as NaN, the workspace as garbage.
std::vector<float> run(const PackedExperts& packed, const DrawnCall& call, Executor& executor);
/// The definition in double, and the magnitude behind each element.
struct Wanted {
  std::vector<double> out, magnitude;
};
Wanted define(const DrawnLayer& layer, const DrawnCall& call);

}  // namespace sluice::testing
