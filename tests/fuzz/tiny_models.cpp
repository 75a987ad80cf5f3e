// SPDX-License-Identifier: Apache-2.0
#include "tiny_models.h"

#include <string_view>

namespace sluice::fuzz {
namespace {

constexpr std::int64_t kWidth = 32, kExperts = 2;

class Tensors {
 public:
  /// Bytes of 0x38: the E4M3 one, 2^-71 as E8M0, about 4e-5 as float32 and as BF16, a table of large ids.
  void add(const std::string& name, DType dtype, std::vector<std::int64_t> shape, int byte = 0x38) {
    const std::size_t bytes = TensorView{.dtype = dtype, .shape = shape}.bytes();
    all_.push_back(
        {name, dtype, std::move(shape), std::vector<std::byte>(bytes, static_cast<std::byte>(byte))});
  }
  std::vector<testing::NamedTensor> take() { return std::move(all_); }

 private:
  std::vector<testing::NamedTensor> all_;
};

std::string layer(const char* before, int number, const char* after) {
  return before + std::to_string(number) + after;
}

TinyModel deepseek_v4() {
  Tensors tensors;
  for (const int l : {0, 1}) {
    const std::string block = layer("layers.", l, ".ffn.");
    tensors.add(block + "gate.weight", DType::bf16, {kExperts, kWidth});
    if (l == 0)
      tensors.add(block + "gate.tid2eid", DType::i64, {4, 1}, 0);
    else
      tensors.add(block + "gate.bias", DType::f32, {kExperts});
    for (const char* matrix : {"w1", "w2", "w3"}) {
      for (const char* expert : {"experts.0.", "experts.1."}) {
        tensors.add(block + expert + matrix + ".weight", DType::i8, {kWidth, kWidth / 2});
        tensors.add(block + expert + matrix + ".scale", DType::f8_e8m0, {kWidth, 1});
      }
      tensors.add(block + "shared_experts." + matrix + ".weight", DType::f8_e4m3, {kWidth, kWidth});
      tensors.add(block + "shared_experts." + matrix + ".scale", DType::f8_e8m0, {1, 1});
    }
  }
  return {"deepseek_v4", tensors.take()};
}

TinyModel gpt_oss() {
  Tensors tensors;
  for (const int l : {0, 1}) {
    const std::string block = layer("model.layers.", l, ".mlp.");
    tensors.add(block + "router.weight", DType::bf16, {kExperts, kWidth});
    tensors.add(block + "router.bias", DType::bf16, {kExperts});
    for (const auto& [name, rows] : {std::pair{"gate_up_proj", 2 * kWidth}, {"down_proj", kWidth}}) {
      const std::string stack = block + "experts." + name;
      tensors.add(stack + "_blocks", DType::u8, {kExperts, rows, 1, 16});
      tensors.add(stack + "_scales", DType::u8, {kExperts, rows, 1});
      tensors.add(stack + "_bias", DType::bf16, {kExperts, rows});
    }
  }
  return {"gpt_oss", tensors.take()};
}

TinyModel mixtral() {
  Tensors tensors;
  for (const int l : {0, 1}) {
    const std::string block = layer("model.layers.", l, ".block_sparse_moe.");
    tensors.add(block + "gate.weight", DType::bf16, {kExperts, kWidth});
    for (const char* expert : {"experts.0.", "experts.1."})
      for (const char* matrix : {"w1", "w2", "w3"})
        tensors.add(block + expert + matrix + ".weight", DType::bf16, {kWidth, kWidth});
  }
  return {"mixtral", tensors.take()};
}

TinyModel qwen3_moe() {
  Tensors tensors;
  for (const int l : {0, 1}) {
    const std::string block = layer("model.layers.", l, ".mlp.");
    tensors.add(block + "gate.weight", DType::bf16, {kExperts, kWidth});
    for (const char* expert : {"experts.0.", "experts.1."})
      for (const char* matrix : {"gate_proj", "up_proj", "down_proj"}) {
        tensors.add(block + expert + matrix + ".weight_packed", DType::u8, {kWidth, kWidth / 2});
        tensors.add(block + expert + matrix + ".weight_scale", DType::f8_e4m3, {kWidth, 2});
        tensors.add(block + expert + matrix + ".weight_global_scale", DType::f32, {1});
      }
  }
  return {"qwen3_moe", tensors.take()};
}

/// Integers of 4 bits under Mixtral's names, all in one group a row.
TinyModel mixtral_integers(const char* method) {
  const bool gptq = std::string_view(method) == "gptq";
  Tensors tensors;
  for (const int l : {0, 1}) {
    const std::string block = layer("model.layers.", l, ".block_sparse_moe.");
    tensors.add(block + "gate.weight", DType::bf16, {kExperts, kWidth});
    for (const char* expert : {"experts.0.", "experts.1."})
      for (const char* matrix : {"w1", "w2", "w3"}) {
        const std::string module = block + expert + matrix;
        if (gptq) {
          tensors.add(module + ".qweight", DType::i32, {kWidth / 8, kWidth});
          tensors.add(module + ".g_idx", DType::i32, {kWidth}, 0);
        } else {
          tensors.add(module + ".qweight", DType::i32, {kWidth, kWidth / 8});
        }
        tensors.add(module + ".qzeros", DType::i32, {1, kWidth / 8});
        tensors.add(module + ".scales", DType::f16, {1, kWidth});
      }
  }
  return {method, tensors.take()};
}

/// compressed-tensors: 3 bits with zero points. No configuration's text names it; an index does.
TinyModel packed() {
  Tensors tensors;
  for (const int l : {0, 1}) {
    const std::string block = layer("model.layers.", l, ".mlp.");
    tensors.add(block + "gate.weight", DType::bf16, {kExperts, kWidth});
    for (const char* expert : {"experts.0.", "experts.1."})
      for (const char* matrix : {"gate_proj", "up_proj", "down_proj"}) {
        tensors.add(block + expert + matrix + ".weight_packed", DType::i32, {kWidth, 3});
        tensors.add(block + expert + matrix + ".weight_scale", DType::bf16, {kWidth, 2});
        tensors.add(block + expert + matrix + ".weight_zero_point", DType::i32, {3, 2});
        tensors.add(block + expert + matrix + ".weight_g_idx", DType::i32, {kWidth}, 0);
      }
  }
  return {"packed", tensors.take()};
}

}  // namespace

std::vector<TinyModel> tiny_models() {
  return {mixtral_integers("gptq"),
          mixtral_integers("awq"),
          packed(),
          deepseek_v4(),
          gpt_oss(),
          mixtral(),
          qwen3_moe()};
}

}  // namespace sluice::fuzz
