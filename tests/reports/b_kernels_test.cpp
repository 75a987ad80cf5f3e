// SPDX-License-Identifier: Apache-2.0
// Section B of the reports: no kernel for my card. Here a card is a processor: backends are chosen by what a
// device can do, from data, and every refusal says why.
#include <algorithm>
#include <cmath>
#include <set>

#include "format/bf16.h"
#include "oracle/oracle.h"
#include "sluice/error.h"
#include "testing/sample_schemes.h"
#include "testing/synthetic.h"
#include "testing/usable_backends.h"
#include "tests/conformance/judge.h"
#include "tests/oracle/invented.h"
#include "tests/reports/model.h"
#include "tests/reports/rows.h"
#include "tests/reports/toy.h"

namespace sluice::reports {
namespace {

using conformance::Problem;
using testing::Numbers;

const char* const kCards[] = {"sm80", "sm86", "sm89", "sm90", "sm100", "sm120"};
constexpr CallMode kInvariant = CallModes::of<call::BatchInvariant>();

/// The limit changes neither who takes NVFP4 nor, where nobody does, what the others say.
TEST(Reports, B16_ALimitCostsNoBackend) {
  const LayerSpec plain = spec_of(kNvfp4, kSilu), limited = spec_of(kNvfp4, kSilu, {.limit = 10});
  int cells = 0;
  for (const std::string_view name : known_device_names()) {
    const Plan without = choose({.layer = plain, .device = known_device(name)}),
               with = choose({.layer = limited, .device = known_device(name)});
    EXPECT_EQ(with.chosen, without.chosen) << name;
    EXPECT_EQ(with.verdicts.size(), backends().size()) << name;
    for (const Verdict& verdict : with.verdicts) {
      EXPECT_EQ(verdict.fits, verdict.misses.empty()) << name << ", " << verdict.backend;
      for (const Miss& miss : verdict.misses) EXPECT_NE(miss.trait, "features") << name << ": " << miss.why;
      for (const Miss& miss : verdict.misses) EXPECT_FALSE(miss.why.empty()) << name;
    }
    ++cells;
  }
  EXPECT_GE(cells, static_cast<int>(std::size(kCards)) + 2);
  EXPECT_NE(choose({.layer = limited, .device = known_device("cpu")}).chosen, "");
  const Toy toy = make(limited, {toy_expert({{20, 15}})});
  for (const Backend* backend : fitting(limited))
    EXPECT_TRUE(near(run(*backend, toy, one_hot(128)).experts[0], 99.9955)) << backend->name;
}

TEST(Reports, B17_HalvesAndInterleavedRowsAreTheSameLayer) {
  for (const Format format : all_formats()) {
    const Expert expert = toy_expert({format == kMxfp4 ? Pair{8, 12} : Pair{8, 9}});
    const LayerSpec spec = spec_of(format, kSilu, kSwigluOai);
    const Toy halves = make(spec, {expert});
    for (const Backend* backend : fitting(spec)) {
      const Output apart = run(*backend, halves, one_hot(128));
      EXPECT_TRUE(near(apart.experts[0], 55.9996)) << backend->name << ", " << format.str();
      if (format == kFp8Block) continue;  // a scale of it spans rows of both
      EXPECT_EQ(run(*backend, make_interleaved(spec, expert), one_hot(128)), apart)
          << backend->name << ", " << format.str();
    }
  }
}

/// nemotron-3 with its routed experts in NVFP4, as one tool or the other writes it.
testing::EditableModel nemotron(testing::sample::AddMatrix add, const char* config) {
  testing::EditableModel model = sample("nemotron-3");
  testing::sample::Shard shard{.draw = testing::Draw(3)};
  for (auto& [file, tensors] : model.files) {
    for (testing::NamedTensor& tensor : tensors) {
      if (tensor.name.find(".experts.") == tensor.name.npos) {
        shard.tensors.push_back(std::move(tensor));
        continue;
      }
      testing::sample::Drawn drawn{.rows = tensor.shape[0], .cols = tensor.shape[1]};
      for (std::size_t i = 0; i < tensor.bytes.size(); i += 2)
        drawn.values.push_back(format::bf16_to_float(load<std::uint16_t>(tensor.bytes.data() + i)));
      add(shard, tensor.name.substr(0, tensor.name.size() - std::string(".weight").size()), drawn);
    }
    tensors = std::move(shard.tensors);
  }
  model.in_config("\"mlp_hidden_act\"",
                  std::string("\"quantization_config\": ") + config + ", \"mlp_hidden_act\"");
  return model;
}

TEST(Reports, B18_ExpertsWithoutAGate) {
  for (const Format format : all_formats()) {
    const Toy toy =
        make(spec_of(format, kRelu2),
             {Expert{.gate = {}, .up = {{0, 0, 3}, {32, 0, -3}, {64, 0, 0.5}}, .down = identity(128)}});
    for (const Backend* backend : fitting(toy.spec)) {
      const Output out = run(*backend, toy, one_hot(128));
      EXPECT_EQ(out.experts[0], 9) << backend->name << ", " << format.str();
      EXPECT_EQ(out.experts[32], 0) << backend->name << ", " << format.str();
      EXPECT_EQ(out.experts[64], 0.25f) << backend->name << ", " << format.str();
    }
    // The first product has I rows, not 2 I.
    EXPECT_EQ(3 * experts_bytes(toy.routed(), 1), 2 * experts_bytes(spec_of(format, kSilu).routed, 1));
  }
  const Edited modelopt(nemotron(testing::sample::add_modelopt_nvfp4,
                                 R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16,
                                     "ignore": ["lm_head", "*.gate", "*shared_experts*"]})"));
  const Edited compressed(nemotron(testing::sample::add_compressed_nvfp4,
                                   R"({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
                                       "ignore": ["lm_head", "re:.*gate$", "re:.*shared_experts.*"],
                                       "config_groups": {"group_0": {"targets": ["Linear"], "weights":
                                       {"num_bits": 4, "type": "float", "strategy": "tensor_group",
                                        "group_size": 16, "symmetric": true, "dynamic": false}}}})"));
  std::vector<float> one(128), other(128);
  for (const Edited* model : {&modelopt, &compressed}) {
    EXPECT_EQ((*model)->spec(2).routed.formats.up, kNvfp4);
    EXPECT_FALSE((*model)->spec(2).routed.formats.gate);
    EXPECT_EQ((*model)->spec(2).routed.activation, kRelu2);
  }
  decode_row((*modelopt).weights(2).routed[5].up, 7, one.data());
  decode_row((*compressed).weights(2).routed[5].up, 7, other.data());
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(one[i], other[i], 1e-6 * std::abs(one[i]));
}

/// 128 experts, top 6, sigmoid with a bias, squared ReLU; sizes are an eighth and a quarter of the report's.
TEST(Reports, B19_OwnRouterAndGivenRoutingAgree) {
  LayerSpec spec =
      spec_of(kNvfp4, kRelu2, {}, {.hidden = 336, .intermediate = 464, .experts = 128, .top_k = 6});
  spec.router.score = *Score::parse("sigmoid");
  spec.router.selection_bias = true;
  const auto team = make_thread_team(2);
  Toy toy{.spec = spec, .weights = testing::synthetic_weights(spec, 1, *team)};
  const RandomRouter router(spec, 7);
  toy.weights.router = router.weights();
  const Call call{.tokens = 4, .hidden = draw_rows(4, 336, 3)};
  for (const Backend* backend : fitting(spec)) {
    const Layer layer = layer_on(*backend, toy);
    const Output own = run_own_router(layer, call);
    for (int t = 0; t < 4; ++t) EXPECT_EQ(ids_of(own, t, 6), router.sigmoid_ids(call, t)) << backend->name;
    Call given = call;
    given.ids = own.ids;
    given.weights = own.weights;
    EXPECT_EQ(run(layer, given), own) << backend->name;
    EXPECT_LT(rel_l2(own.experts, run(*reference(), toy, given).experts), 2e-2) << backend->name;
    EXPECT_GT(norm(own.experts), 0) << backend->name;
  }
}

TEST(Reports, B20_TheClampIsInTheBatchedLayoutToo) {
  for (const Format format : all_formats()) {
    const Expert expert = toy_expert({format == kMxfp4 ? Pair{24, 16} : Pair{20, 15}});
    const Toy toy =
        make(spec_of(format, kSilu, {.limit = 10}, {.experts = 4}), {expert, expert, expert, expert});
    const Batched rows{.counts = {1, 0, 3, 8}, .max_tokens = 8, .used = one_hot(128).hidden};
    for (const Backend* backend : fitting(toy.spec, {kBatched})) {
      const std::vector<float> out = run_batched(*backend, toy, rows);
      for (std::size_t r = 0; r < 32; ++r) {
        const bool valid = static_cast<int>(r % 8) < rows.counts[r / 8];
        EXPECT_TRUE(valid ? near(out[r * 128], 99.9955) : near(out[r * 128], kUnwritten))
            << backend->name << ", " << format.str() << ", row " << r;
      }
    }
  }
}

/// All 254 finite bytes. NaN bytes stay 0 here: B55 and the loader's tests have them.
TEST(Reports, B21_EveryByteOfE4m3IsItsValue) {
  for (const Format format : {kFp8Block, kFp8Channel, kFp8Tensor, *Format::parse("mxfp8")}) {
    auto down = shared(blank(format, {256, 32}));
    std::vector<double> wanted(256);
    for (unsigned byte = 0; byte < 256; ++byte) {
      if ((byte & 0x7F) == 0x7F) continue;
      put_code(*down, byte, 0, byte);
      const int exponent = static_cast<int>(byte >> 3 & 15), mantissa = static_cast<int>(byte & 7);
      const double size = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
      wanted[byte] = byte & 0x80 ? -size : size;
    }
    ASSERT_EQ(wanted[0x38], 1);
    ASSERT_EQ(wanted[0x01], 0.001953125);
    ASSERT_EQ(wanted[0x7E], 448);
    const Toy toy = down_probe(down);
    for (const Backend* backend : fitting(toy.spec)) {
      const Output out = run(*backend, toy, one_hot(256));
      for (std::size_t byte = 0; byte < 256; ++byte)
        EXPECT_EQ(out.experts[byte], wanted[byte])
            << backend->name << ", " << format.str() << ", byte " << byte;
    }
  }
}

TEST(Reports, B22_FourBitWeightsWithSixteenBitActivations) {
  int ran = 0;
  for (const Format format : all_formats()) {
    if (geometry(format).code_bits != 4) continue;
    conformance::Case made =
        conformance::make_case(format, format, kSilu, {}, {.hidden = 128, .intermediate = 128});
    made.spec.routed.experts = made.spec.routed.local_experts = made.spec.router.experts = 4;
    for (const int tokens : {1, 3, 17, 64}) {
      const Problem problem(made, Numbers::noisy, {.tokens = tokens, .dtype = DType::bf16});
      for (const Backend* backend : fitting(made.spec)) {
        const auto out = problem.run(problem.layer(*backend));
        problem.expect_right(out);
        EXPECT_LT(rel_l2(out.experts_out, problem.definition().experts_out), 1e-2) << backend->name;
        ++ran;
      }
    }
  }
  EXPECT_GE(ran, 3 * 4);
}

TEST(Reports, B23_NoBackendAnswersWithZerosOrNoise) {
  conformance::Case made =
      conformance::make_case(kNvfp4, kNvfp4, kSilu, {}, {.hidden = 256, .intermediate = 512});
  made.spec.routed.experts = made.spec.routed.local_experts = made.spec.router.experts = 2;
  made.spec.routed.top_k = made.spec.router.top_k = 1;
  const Problem problem(made, Numbers::noisy, {.tokens = 128});
  for (const Backend* backend : fitting(made.spec)) {
    const auto out = problem.run(problem.layer(*backend));
    EXPECT_GT(norm(out.experts_out), 0.5 * norm(problem.definition().experts_out)) << backend->name;
    EXPECT_LT(rel_l2(out.experts_out, problem.definition().experts_out), 0.01) << backend->name;
    problem.expect_right(out);
  }
}

/// A device that has all that another has runs all that the other runs, by instructions and not by name.
TEST(Reports, B25_MoreInstructionsNeverMeanFewerBackends) {
  Capability can = invented::everything_on_cpu();
  can.device = DeviceKinds::of<device::Cuda>();
  can.uses = known_device("sm80").has;
  const Backend weight_only = invented::backend("cuda.invented", can);
  std::vector<const Backend*> all(backends().begin(), backends().end());
  all.push_back(&weight_only);
  const auto fits = [&](std::string_view device) {
    std::set<std::string> names;
    for (const Verdict& verdict :
         choose({.layer = spec_of(kMxfp4, kSilu), .device = known_device(device)}, all).verdicts)
      if (verdict.fits || (verdict.misses.size() == 1 && verdict.misses[0].trait == "choice"))
        names.insert(verdict.backend);
    return names;
  };
  for (const std::string_view small : known_device_names())
    for (const std::string_view large : known_device_names()) {
      const DeviceFacts less = known_device(small), more = known_device(large);
      if (less.kind != more.kind || !less.has.minus(more.has).empty()) continue;
      const std::set<std::string> of_less = fits(small), of_more = fits(large);
      EXPECT_TRUE(std::ranges::includes(of_more, of_less)) << small << " and " << large;
    }
  for (const char* card : kCards) EXPECT_TRUE(fits(card).contains("cuda.invented")) << card;
}

TEST(Reports, B26_EveryCandidateSaysWhyNot) {
  const Toy toy = make(spec_of(kMxfp4, kSilu), {toy_expert({{2, 3}})});
  // (a) an impossible mix: no backend of this build runs there.
  const Plan nowhere = choose({.layer = toy.spec, .device = known_device("sm90"), .calls = {kInvariant}});
  EXPECT_EQ(nowhere.chosen, "");
  try {
    Layer(nowhere, toy.weights);
    ADD_FAILURE() << "a layer that nothing runs";
  } catch (const Unsupported& error) {
    for (const Backend* backend : backends())
      EXPECT_NE(std::string(error.what()).find(backend->name), std::string::npos) << error.what();
    for (const Verdict& verdict : error.plan().verdicts) {
      ASSERT_FALSE(verdict.misses.empty()) << verdict.backend;
      EXPECT_NE(std::string(error.what()).find(verdict.misses[0].why), std::string::npos) << error.what();
    }
  }
  // (b) the plain reference by name, without a feature: refused, although another would do.
  Backend poorer = *reference();
  poorer.can.features = poorer.can.features.minus(Features::set<feature::Limit>());
  const Backend other = invented::backend("other", invented::everything_on_cpu());
  const Backend* const both[] = {&poorer, &other};
  const Request request{
      .layer = spec_of(kMxfp4, kSilu, {.limit = 10}), .device = detect(), .by_name = "reference"};
  EXPECT_EQ(choose(request, both).chosen, "");
  Request any = request;
  any.by_name.clear();
  EXPECT_EQ(choose(any, both).chosen, "other");
}

TEST(Reports, B27_TheChoiceIsTheCheapestThatFits) {
  for (const int tokens : {1, 512}) {
    const Plan plan = choose({.layer = spec_of(kMxfp4, kSilu), .device = detect(), .tokens = {tokens}});
    int compared = 0;
    double best = 0;
    for (const Verdict& verdict : plan.verdicts) {
      if (!verdict.fits) continue;
      ASSERT_EQ(verdict.kernels.size(), 1u);
      if (verdict.backend == plan.chosen) best = verdict.kernels[0].us;
    }
    for (const Backend* backend : testing::usable_backends()) {
      const Plan named = plan_on(*backend, plan.request.layer);
      if (named.chosen.empty() || backend->only_by_name) continue;
      const Plan costed = choose(
          {.layer = plan.request.layer, .device = detect(), .tokens = {tokens}, .by_name = named.chosen});
      EXPECT_LE(best, 1.1 * costed.verdicts.front().kernels.at(0).us)
          << plan.chosen << " and " << named.chosen;
      ++compared;
    }
    EXPECT_GE(compared, 1);
    EXPECT_NE(find_backend(plan.chosen, backends()), nullptr) << plan.chosen;
    EXPECT_GT(best, 0);
  }
}

}  // namespace
}  // namespace sluice::reports
