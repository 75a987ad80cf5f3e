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
          {"qwen3_235b_fp8", renormalised({4096, 1536, 128, 8}, Formats::of<format::Fp8Block128>())}};
}

}  // namespace sluice::golden
