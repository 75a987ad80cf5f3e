// SPDX-License-Identifier: Apache-2.0
// What people read. Whole plans of real backends are in tests/golden.
#include <gtest/gtest.h>

#include "tests/oracle/invented.h"

namespace sluice {
namespace {

using invented::backend;

Request request() { return {.layer = invented::layer(), .device = invented::card()}; }

TEST(Summary, SaysShapeFormatActivationAndNeeds) {
  EXPECT_EQ(summary(request()),
            "32 experts, top 4, 2880x2880, mxfp4, silu, needs gate_up_bias, down_bias, limit, slope, shift; "
            "a card");
}

TEST(Summary, SaysWhatIsUnusual) {
  Request unusual = request();
  unusual.layer = invented::with_shared(invented::plain_layer());
  unusual.layer.routed.local_experts = 8;
  unusual.layer.routed.formats.down = Formats::of<format::Nvfp4>();
  unusual.layer.shared->experts.activation = Activations::of<activation::SiluThenClamp>();
  EXPECT_EQ(
      summary(unusual),
      "32 experts (8 here), top 4, 2880x2880, bf16/bf16/nvfp4, silu, shared 1440 bf16 silu_then_clamp, needs "
      "expert_map, shared_expert, mixed_formats; a card");
}

TEST(Explain, TheChosenOneTheOthersAndTheReasons) {
  Capability card = invented::everything_on_cpu();
  card.device = DeviceKinds::of<device::Cuda>();
  Capability wgmma = card;
  wgmma.uses = InstructionList::set<instruction::Wgmma>();
  wgmma.weights = Formats::set<format::Fp8Block128>();
  wgmma.hidden_multiple = 128;
  const Backend fast = backend("cuda.fast", card, invented::fast), slow = backend("cuda.dequant", card),
                fp8 = backend("cuda.fp8_wgmma", wgmma, invented::not_built),
                cpu = backend("cpu.avx2", invented::everything_on_cpu());
  const Backend* const all[] = {&fp8, &cpu, &slow, &fast};
  EXPECT_EQ(explain(choose(request(), all)),
            "32 experts, top 4, 2880x2880, mxfp4, silu, needs gate_up_bias, down_bias, limit, slope, shift; "
            "a card\n"
            "  use  cuda.fast       1: gemv 1.00 us, 16: gemv 16.0 us, 256: mma 768 us (estimated)\n"
            "  fits cuda.dequant    1: plain 10.0 us, 16: plain 160 us, 256: plain 2.56 ms (estimated)\n"
            "  no   cpu.avx2        device: runs on cpu\n"
            "  no   cuda.fp8_wgmma  instructions: a card lacks wgmma; weights: mxfp4 is not in "
            "{fp8_block128}; hidden: "
            "2880 is not a multiple of 128; build: its kernels are not in this build\n");
}

TEST(Explain, WhenNothingFitsItSaysWhatABackendWouldDeclare) {
  const Backend cpu = backend("cpu.avx2", invented::everything_on_cpu());
  const Backend* const all[] = {&cpu};
  EXPECT_EQ(
      explain(choose(request(), all)),
      "no backend runs this layer\n"
      "32 experts, top 4, 2880x2880, mxfp4, silu, needs gate_up_bias, down_bias, limit, slope, shift; a "
      "card\n"
      "  no   cpu.avx2  device: runs on cpu\n"
      "  a backend for it declares device cuda, instructions out of {cp_async, mma_bf16}, weights mxfp4, "
      "activation silu, features gate_up_bias, down_bias, limit, slope, shift\n");
}

TEST(Unsupported, CarriesThePlanAndSaysWhatToDo) {
  const Backend cpu = backend("cpu.avx2", invented::everything_on_cpu());
  const Backend* const all[] = {&cpu};
  const Plan plan = choose(request(), all);
  const Unsupported error(plan);
  EXPECT_EQ(error.kind(), ErrorKind::unsupported);
  EXPECT_EQ(error.info().code, "no_backend");
  EXPECT_EQ(error.info().what, "no backend runs this layer");
  EXPECT_EQ(error.info().what + "\n" + error.info().why + "\n", explain(plan));
  EXPECT_EQ(error.info().todo, "This build has no backend for cuda; plan for a device that one runs on");
  EXPECT_EQ(error.plan().verdicts.size(), 1u);
  EXPECT_NE(std::string(error.what()).find("device: runs on cpu"), std::string::npos);
}

TEST(Unsupported, AForcedBackendIsNamed) {
  Capability tiles = invented::everything_on_cpu();
  tiles.hidden_multiple = 128;
  const Backend cpu = backend("cpu.tiles", tiles);
  const Backend* const all[] = {&cpu};
  const Plan plan =
      choose({.layer = invented::layer(), .device = invented::cpu(), .by_name = "cpu.tiles"}, all);
  const ErrorInfo info = Unsupported(plan).info();
  EXPECT_EQ(info.what, "cpu.tiles does not run this layer");
  EXPECT_NE(info.why.find("hidden: 2880 is not a multiple of 128"), std::string::npos) << info.why;
  EXPECT_EQ(info.why.find("a backend for it"), std::string::npos) << "there may well be another one";
}

}  // namespace
}  // namespace sluice
