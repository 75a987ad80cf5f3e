// SPDX-License-Identifier: Apache-2.0
// Layers as a GGUF file of DeepSeek's architecture (deepseek2), as llama.cpp's converter names and orders
// things: for tests, and for `sluice sample deepseek-gguf`.
#pragma once

#include <cstdint>
#include <vector>

#include "sluice/spec.h"
#include "testing/gguf_writer.h"

namespace sluice::testing {

struct GgufLayer {
  LayerSpec spec;
  LayerWeights weights;
};

/// All layers have experts, of one shape; those before `first` are dense and left out. Matrices in GGUF's own
/// blocks are copied, others are written as F32. Throws std::logic_error for what deepseek2 cannot say: other
/// scores than softmax and sigmoid, biases, limits, experts in several formats.
GgufWriter write_deepseek_gguf(const std::vector<GgufLayer>& layers, int first = 0);

/// Two such layers with drawn weights: gate and up in Q4_K, down in Q6_K and Q8_0 by turns, as files of mixed
/// quality have them, the shared expert in Q5_K.
std::vector<GgufLayer> draw_deepseek_layers(std::uint64_t seed);

}  // namespace sluice::testing
