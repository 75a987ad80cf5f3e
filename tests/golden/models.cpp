// SPDX-License-Identifier: Apache-2.0
#include "tests/golden/models.h"

#include "activation/activation.h"
#include "format/formats.h"

namespace sluice::golden {
namespace {

struct Size {
  int hidden, intermediate, experts, top_k;
};

/// Plain SwiGLU without biases.
ExpertsSpec experts(Size size, Format format) {
  return {.hidden = size.hidden,
          .intermediate = size.intermediate,
          .experts = size.experts,
          .local_experts = size.experts,
          .top_k = size.top_k,
          .formats = {format, format, format},
          .activation = Activations::of<activation::Silu>()};
}

RouterSpec router(Size size, std::string_view score) {
  return {.score = *Score::parse(score), .experts = size.experts, .top_k = size.top_k};
}

LayerSpec gpt_oss(int count) {
  const Size size{2880, 2880, count, 4};
  LayerSpec layer{.routed = experts(size, Formats::of<format::Mxfp4>()),
                  .router = router(size, "softmax_selected")};
  layer.routed.params = {.limit = 7, .slope = 1.702f, .shift = 1};
  layer.routed.gate_up_bias = layer.routed.down_bias = layer.router.bias = true;
  return layer;
}

/// Routed experts in `format`, the shared one in FP8 always.
LayerSpec deepseek_v4_flash(Format format) {
  const Size size{4096, 2048, 256, 6};
  LayerSpec layer{.routed = experts(size, format), .router = router(size, "sqrt_softplus")};
  layer.routed.params.limit = 10;
  layer.router.selection_bias = layer.router.renormalise = true;
  layer.router.scale = 1.5f;
  layer.shared = SharedSpec{.experts = experts({4096, 2048, 1, 1}, Formats::of<format::Fp8Block128>())};
  layer.shared->experts.params.limit = 10;
  return layer;
}

LayerSpec renormalised(Size size, Format format) {
  LayerSpec layer{.routed = experts(size, format), .router = router(size, "softmax")};
  layer.router.renormalise = true;
  return layer;
}

/// DeepSeek-V3's router, with a shared expert of `shared`, or none for 0.
LayerSpec sigmoid(Size size, Format format, int shared) {
  LayerSpec layer{.routed = experts(size, format), .router = router(size, "sigmoid")};
  layer.router.selection_bias = layer.router.renormalise = true;
  if (shared > 0) layer.shared = SharedSpec{.experts = experts({size.hidden, shared, 1, 1}, format)};
  return layer;
}

LayerSpec deepseek_v3() {
  LayerSpec layer = sigmoid({7168, 2048, 256, 8}, Formats::of<format::Fp8Block128>(), 2048);
  layer.router.groups = 8;
  layer.router.groups_kept = 4;
  layer.router.group_score = GroupScore::two_best;
  layer.router.scale = 2.5f;
  return layer;
}

LayerSpec minimax_m3() {
  LayerSpec layer = sigmoid({6144, 3072, 128, 4}, Formats::of<format::Mxfp8>(), 3072);
  layer.routed.params = layer.shared->experts.params = {.limit = 7, .slope = 1.702f, .shift = 1};
  layer.router.scale = 2;
  return layer;
}

/// Layer 44, where both limits are.
LayerSpec step_3_5_flash() {
  LayerSpec layer = sigmoid({4096, 1280, 288, 8}, Formats::of<format::Bf16>(), 1280);
  layer.routed.activation = layer.shared->experts.activation = Activations::of<activation::SiluThenClamp>();
  layer.routed.params.limit = 7;
  layer.shared->experts.params.limit = 16;
  layer.router.scale = 3;
  return layer;
}

LayerSpec llama_4_maverick() {
  LayerSpec layer = sigmoid({5120, 8192, 128, 1}, Formats::of<format::Bf16>(), 8192);
  layer.router = router({5120, 8192, 128, 1}, "sigmoid_selected");
  layer.routed.weight_on_input = true;
  return layer;
}

LayerSpec nemotron_3_nano() {
  LayerSpec layer = sigmoid({2688, 1856, 128, 6}, Formats::of<format::Bf16>(), 3712);
  for (ExpertsSpec* part : {&layer.routed, &layer.shared->experts}) {
    part->activation = Activations::of<activation::Relu2>();
    part->formats.gate = std::nullopt;
  }
  layer.router.scale = 2.5f;
  return layer;
}

LayerSpec gemma_4_26b() {
  LayerSpec layer = renormalised({2816, 704, 128, 8}, Formats::of<format::Bf16>());
  layer.routed.activation = Activations::of<activation::GeluTanh>();
  layer.router.expert_scale = true;
  return layer;
}

/// An eighth of gpt-oss-120b's experts, as one of eight machines would hold it.
LayerSpec gpt_oss_slice() {
  LayerSpec layer = gpt_oss(128);
  layer.routed.local_experts = 16;
  return layer;
}

}  // namespace

std::vector<Model> models() {
  return {{"gpt_oss_20b", gpt_oss(32)},
          {"gpt_oss_120b", gpt_oss(128)},
          {"gpt_oss_120b_slice", gpt_oss_slice()},
          {"deepseek_v4_flash_nvfp4", deepseek_v4_flash(Formats::of<format::Nvfp4>())},
          {"deepseek_v4_flash_fp4", deepseek_v4_flash(Formats::of<format::Mxfp4>())},
          {"deepseek_v4_flash_base_fp8", deepseek_v4_flash(Formats::of<format::Fp8Block128>())},
          {"mixtral_8x7b_bf16", renormalised({4096, 14336, 8, 2}, Formats::of<format::Bf16>())},
          {"qwen3_235b_fp8", renormalised({4096, 1536, 128, 8}, Formats::of<format::Fp8Block128>())},
          {"deepseek_v3_fp8", deepseek_v3()},
          {"minimax_m3_mxfp8", minimax_m3()},
          {"step_3_5_flash_bf16", step_3_5_flash()},
          {"llama_4_maverick_bf16", llama_4_maverick()},
          {"nemotron_3_nano_bf16", nemotron_3_nano()},
          {"gemma_4_26b_bf16", gemma_4_26b()}};
}

}  // namespace sluice::golden
