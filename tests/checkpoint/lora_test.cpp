// SPDX-License-Identifier: Apache-2.0
// Adapters as PEFT writes them. What a stack's A and B mean is written down here a second time, as PEFT's
// get_delta_weight and the models' own forward pass say it, and every delta is held against that.
#include "sluice/lora.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <set>

#include "editable_model.h"
#include "format/scales.h"
#include "sluice/checkpoint.h"
#include "sluice/error.h"
#include "testing/sample.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using testing::NamedTensor;

Checkpoint fixture(const std::string& name) {
  return Checkpoint::open((fs::path(SLUICE_SOURCE_DIR) / "tests/data/fixtures" / name).string());
}

/// A tensor's numbers, different in every place.
struct Numbers {
  std::int64_t rows = 0, cols = 0;
  std::vector<float> values = {};

  double at(std::int64_t row, std::int64_t col) const {
    return double{values[static_cast<std::size_t>(row * cols + col)]};
  }
};

Numbers numbers(std::int64_t rows, std::int64_t cols, int seed) {
  Numbers made{.rows = rows, .cols = cols};
  for (std::int64_t i = 0; i < rows * cols; ++i)
    made.values.push_back(static_cast<float>((i * 7919 + seed * 104'729) % 2003 - 1001) / 1024);
  return made;
}

/// adapter_config.json and adapter_model.safetensors, in memory.
struct Adapter {
  std::string config = R"({"peft_type": "LORA", "peft_version": "0.19.1", "r": 3, "lora_alpha": 6})";
  std::vector<NamedTensor> tensors = {};

  Numbers add(const std::string& name, std::int64_t rows, std::int64_t cols) {
    const Numbers made = numbers(rows, cols, static_cast<int>(tensors.size()) + 1);
    tensors.push_back(
        testing::tensor_of<float>("base_model.model." + name, DType::f32, {rows, cols}, made.values));
    return made;
  }
  void write(const fs::path& directory) const {
    fs::create_directories(directory);
    testing::write_file(directory / "adapter_config.json", config);
    testing::write_safetensors((directory / "adapter_model.safetensors").string(), tensors);
  }
  Lora open(const Checkpoint& model) const {
    const testing::TemporaryDirectory directory;
    write(directory.path() / "adapter");
    return Lora::open((directory.path() / "adapter").string(), model);
  }
};

double number(const LoraMatrix& matrix, std::int64_t row, std::int64_t col) {
  return format::read_number(matrix.dtype, matrix.data + row * matrix.row_stride + col * matrix.col_stride);
}

using Weight = std::function<double(std::int64_t row, std::int64_t col)>;

/// The delta's product is `wanted`, all [rows, cols] of it.
void expect_delta(const LoraDelta& delta, std::int64_t rows, std::int64_t cols, const Weight& wanted) {
  ASSERT_TRUE(delta);
  ASSERT_EQ(delta.b.rows, rows);
  ASSERT_EQ(delta.a.cols, cols);
  double largest = 0;
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t k = 0; k < cols; ++k) {
      double sum = 0;
      for (std::int64_t r = 0; r < delta.a.rows; ++r) sum += number(delta.b, i, r) * number(delta.a, r, k);
      largest = std::max(largest, std::abs(sum * delta.scale - wanted(i, k)));
    }
  EXPECT_LT(largest, 1e-6);
}

/// scale B A of a module.
Weight product(const Numbers& a, const Numbers& b, double scale) {
  return [=](std::int64_t row, std::int64_t col) {
    double sum = 0;
    for (std::int64_t r = 0; r < a.rows; ++r) sum += b.at(row, r) * a.at(r, col);
    return scale * sum;
  };
}

/// PEFT: einsum("o r e, e r i -> e i o", B.reshape(o, r, e), A.reshape(e, r, i)); element [i, o] of expert e.
Weight einsum(const Numbers& a, const Numbers& b, std::int64_t experts, std::int64_t expert) {
  const std::int64_t rank = a.rows / experts;
  return [=](std::int64_t i, std::int64_t o) {
    double sum = 0;
    for (std::int64_t r = 0; r < rank; ++r) sum += b.at(o, r * experts + expert) * a.at(expert * rank + r, i);
    return 2 * sum;  // alpha 6, rank 3
  };
}

const char* const kStacks =
    R"({"peft_type": "LORA", "peft_version": "0.19.1", "r": 3, "lora_alpha": 6, "target_modules": [],
        "target_parameters": ["mlp.experts.gate_up_proj", "1.mlp.experts.down_proj"]})";

// ---- modules of single experts

TEST(LoraModules, OfSingleExperts) {
  const Checkpoint model = fixture("qwen3_moe_fp8_block");  // 256 x 128
  Adapter adapter;
  const Numbers gate_a = adapter.add("model.layers.1.mlp.experts.2.gate_proj.lora_A.weight", 3, 256);
  const Numbers gate_b = adapter.add("model.layers.1.mlp.experts.2.gate_proj.lora_B.weight", 128, 3);
  const Numbers down_a = adapter.add("model.layers.1.mlp.experts.0.down_proj.lora_A.weight", 3, 128);
  const Numbers down_b = adapter.add("model.layers.1.mlp.experts.0.down_proj.lora_B.weight", 256, 3);
  adapter.add("model.layers.1.self_attn.q_proj.lora_A.weight", 3, 256);
  const Lora lora = adapter.open(model);
  EXPECT_EQ(lora.layers(), std::vector<int>{1});
  ASSERT_EQ(lora.notes().size(), 1u);
  EXPECT_EQ(lora.notes()[0].substr(0, 10), "1 of 5 ten");
  EXPECT_TRUE(lora.adapter(0).routed.empty());

  const LoraAdapter layer = lora.adapter(1);
  ASSERT_EQ(layer.routed.size(), 4u);
  expect_delta(layer.routed[2].gate, 128, 256, product(gate_a, gate_b, 2));
  expect_delta(layer.routed[0].down, 256, 128, product(down_a, down_b, 2));
  EXPECT_FALSE(layer.routed[0].gate || layer.routed[2].up || layer.routed[3].down);
  EXPECT_EQ(LoraAdapter::largest_rank(layer.routed), 3);
}

TEST(LoraModules, RanksAndScalesByPattern) {
  const Checkpoint model = fixture("mixtral_bf16");
  Adapter adapter;
  adapter.config = R"({"peft_type": "LORA", "r": 3, "lora_alpha": 6, "use_rslora": true,
                       "rank_pattern": {"experts.\\d+.w2": 4}, "alpha_pattern": {"w2": 10}})";
  const std::string block = "model.layers.0.block_sparse_moe.experts.1.";
  const Numbers up_a = adapter.add(block + "w3.lora_A.weight", 3, 256);
  const Numbers up_b = adapter.add(block + "w3.lora_B.weight", 128, 3);
  const Numbers down_a = adapter.add(block + "w2.lora_A.weight", 4, 128);
  const Numbers down_b = adapter.add(block + "w2.lora_B.weight", 256, 4);
  const LoraAdapter layer = adapter.open(model).adapter(0);
  expect_delta(layer.routed[1].up, 128, 256, product(up_a, up_b, 6 / std::sqrt(3.0)));
  expect_delta(layer.routed[1].down, 256, 128, product(down_a, down_b, 5));
}

TEST(LoraModules, OfTheSharedExpert) {
  const Checkpoint model = fixture("deepseek_v4_fp4");
  const LayerSpec spec = model.spec(1);
  Adapter adapter;
  const std::int64_t width = spec.shared->experts.intermediate;
  const Numbers a = adapter.add("model.layers.1.mlp.shared_experts.up_proj.lora_A.weight", 3, 256);
  const Numbers b = adapter.add("model.layers.1.mlp.shared_experts.up_proj.lora_B.weight", width, 3);
  const LoraAdapter layer = adapter.open(model).adapter(1);
  EXPECT_TRUE(layer.routed.empty());
  ASSERT_EQ(layer.shared.size(), 1u);
  expect_delta(layer.shared[0].up, width, 256, product(a, b, 2));
}

// ---- stacks

/// gpt-oss: gate_up = x @ P[e], P [experts, hidden, 2 * intermediate], gate = gate_up[::2], up =
/// gate_up[1::2]; P is marked as transposed, so all versions of PEFT read it alike.
TEST(LoraStacks, OfGptOss) {
  const Checkpoint model = fixture("gpt_oss_bf16");  // 4 experts of 64 x 96
  for (const char* version : {"0.19.1", "0.18.0"}) {
    Adapter adapter;
    adapter.config = kStacks;
    testing::EditableModel::replace(adapter.config, "0.19.1", version);
    const std::string block = "model.layers.1.mlp.experts.";
    const Numbers a = adapter.add(block + "base_layer.lora_A.weight", 12, 64);
    const Numbers b = adapter.add(block + "base_layer.lora_B.weight", 192, 12);
    const Numbers down_a = adapter.add(block + "lora_A.weight", 12, 96);
    const Numbers down_b = adapter.add(block + "lora_B.weight", 64, 12);
    const LoraAdapter layer = adapter.open(model).adapter(1);
    for (std::int64_t e = 0; e < 4; ++e) {
      const LoraExpert& expert = layer.routed[static_cast<std::size_t>(e)];
      const Weight both = einsum(a, b, 4, e), down = einsum(down_a, down_b, 4, e);
      expect_delta(expert.gate, 96, 64, [&](auto i, auto k) { return both(k, 2 * i); });
      expect_delta(expert.up, 96, 64, [&](auto i, auto k) { return both(k, 2 * i + 1); });
      expect_delta(expert.down, 64, 96, [&](auto o, auto i) { return down(i, o); });
    }
  }
}

/// Qwen3: gate_up = linear(x, P[e]), P [experts, 2 * intermediate, hidden], gate and up are its halves. PEFT
/// before 0.19 takes 2 * intermediate for the input. 2 * intermediate is hidden here, so only the version
/// tells.
TEST(LoraStacks, OfQwenByBothGenerationsOfPeft) {
  const Checkpoint model = fixture("qwen3_moe_fp8_block");
  for (const bool old : {false, true}) {
    SCOPED_TRACE(old);
    Adapter adapter;
    adapter.config = kStacks;
    if (old) testing::EditableModel::replace(adapter.config, "0.19.1", "0.18.1");
    const std::string block = "model.layers.1.mlp.experts.";
    const Numbers a = adapter.add(block + "base_layer.lora_A.weight", 12, 256);
    const Numbers b = adapter.add(block + "base_layer.lora_B.weight", 256, 12);
    const Numbers down_a = adapter.add(block + "lora_A.weight", 12, old ? 256 : 128);
    const Numbers down_b = adapter.add(block + "lora_B.weight", old ? 128 : 256, 12);
    const LoraAdapter layer = adapter.open(model).adapter(1);
    for (std::int64_t e = 0; e < 4; ++e) {
      const LoraExpert& expert = layer.routed[static_cast<std::size_t>(e)];
      const Weight both = einsum(a, b, 4, e), down = einsum(down_a, down_b, 4, e);
      // P[e][row][col] is einsum's "e i o" of old, and "e o i" since.
      const auto at = [old](const Weight& delta, auto row, auto col) {
        return old ? delta(row, col) : delta(col, row);
      };
      expect_delta(expert.gate, 128, 256, [&](auto i, auto k) { return at(both, i, k); });
      expect_delta(expert.up, 128, 256, [&](auto i, auto k) { return at(both, 128 + i, k); });
      expect_delta(expert.down, 256, 128, [&](auto o, auto i) { return at(down, o, i); });
    }
  }
}

TEST(LoraStacks, OneParameterIsNotNested) {
  const Checkpoint model = fixture("gpt_oss_bf16");
  Adapter adapter;
  adapter.config = kStacks;  // names down_proj in layer 1 only
  const Numbers a = adapter.add("model.layers.0.mlp.experts.lora_A.weight", 12, 64);
  const Numbers b = adapter.add("model.layers.0.mlp.experts.lora_B.weight", 192, 12);
  const LoraAdapter layer = adapter.open(model).adapter(0);
  const Weight both = einsum(a, b, 4, 3);
  expect_delta(layer.routed[3].gate, 96, 64, [&](auto i, auto k) { return both(k, 2 * i); });
  EXPECT_FALSE(layer.routed[3].down);
}

/// Llama-4: down = h @ P[e], P [experts, intermediate, hidden], which PEFT does not know to be transposed:
/// since 0.19 A reads the last dimension, the weight's outputs, and before that the weight's inputs.
TEST(LoraStacks, OfLlama4ByBothGenerationsOfPeft) {
  const testing::TemporaryDirectory directory;
  testing::write_sample("llama-4", directory.path().string(), 1);
  const Checkpoint model = Checkpoint::open(directory.path().string());
  const int layer = model.info().moe_layers.front();
  const ExpertsSpec spec = model.spec(layer).routed;
  const std::int64_t hidden = spec.hidden, intermediate = spec.intermediate, all = 3 * spec.experts;
  for (const bool old : {false, true}) {
    SCOPED_TRACE(old);
    Adapter adapter;
    adapter.config = R"({"peft_type": "LORA", "peft_version": "0.19.1", "r": 3, "lora_alpha": 6,
                         "target_parameters": ["feed_forward.experts.down_proj"]})";
    if (old) testing::EditableModel::replace(adapter.config, "0.19.1", "0.18.1");
    const std::string experts = "model.layers." + std::to_string(layer) + ".feed_forward.experts.";
    const Numbers a = adapter.add(experts + "lora_A.weight", all, old ? intermediate : hidden);
    const Numbers b = adapter.add(experts + "lora_B.weight", old ? hidden : intermediate, all);
    const LoraAdapter adapted = adapter.open(model).adapter(layer);
    for (std::int64_t e = 0; e < spec.experts; ++e) {
      const Weight down = einsum(a, b, spec.experts, e);
      expect_delta(adapted.routed[static_cast<std::size_t>(e)].down, hidden, intermediate,
                   [&](auto o, auto i) { return old ? down(i, o) : down(o, i); });
    }
  }
}

// ---- what is refused

/// A good adapter for qwen3_moe_fp8_block, spoilt.
struct Spoilt {
  const char* code;
  ErrorKind kind;
  const char* says;
  std::function<void(Adapter&)> spoil;
};

const std::string kUp = "model.layers.1.mlp.experts.2.up_proj.";

Adapter good_adapter() {
  Adapter adapter;
  adapter.add(kUp + "lora_A.weight", 3, 256);
  adapter.add(kUp + "lora_B.weight", 128, 3);
  return adapter;
}

std::function<void(Adapter&)> with_config(const char* entry) {
  return [entry](Adapter& adapter) {
    testing::EditableModel::replace(adapter.config, "\"r\": 3", std::string("\"r\": 3, ") + entry);
  };
}

std::function<void(Adapter&)> with_tensor(const std::string& name, std::int64_t rows, std::int64_t cols) {
  return [=](Adapter& adapter) { adapter.add(name, rows, cols); };
}

std::vector<Spoilt> spoilt_adapters() {
  constexpr ErrorKind corrupt = ErrorKind::corrupt_file, unsupported = ErrorKind::unsupported;
  return {
      {"missing_tensor", corrupt, "no lora_B", [](Adapter& adapter) { adapter.tensors.pop_back(); }},
      {"missing_tensor", corrupt, "no lora_A",
       [](Adapter& adapter) { adapter.tensors.erase(adapter.tensors.begin()); }},
      {"wrong_shape", corrupt, "[3, 256], expected [4, 256]: rank 4",
       [](Adapter& adapter) { testing::EditableModel::replace(adapter.config, "\"r\": 3", "\"r\": 4"); }},
      {"wrong_shape", corrupt, "[3, 128], expected [128, 3]",
       [](Adapter& adapter) {
         adapter.tensors[1].shape = {3, 128};
       }},
      {"wrong_shape", corrupt, "[12, 256], expected [12, 128]",
       [](Adapter& adapter) {
         adapter.config = kStacks;
         adapter.add("model.layers.1.mlp.experts.lora_A.weight", 12, 256);
         adapter.add("model.layers.1.mlp.experts.lora_B.weight", 256, 12);
       }},
      {"wrong_dtype", corrupt, "it is I32", [](Adapter& adapter) { adapter.tensors[0].dtype = DType::i32; }},
      {"unused_tensor", corrupt, "no such module",
       with_tensor("model.layers.1.mlp.experts.2.k_proj.lora_A.weight", 3, 256)},
      {"unused_tensor", corrupt, "4 experts",
       [](Adapter& adapter) {
         adapter.add("model.layers.1.mlp.experts.4.up_proj.lora_A.weight", 3, 256);
         adapter.add("model.layers.1.mlp.experts.4.up_proj.lora_B.weight", 128, 3);
       }},
      {"unused_tensor", corrupt, "no shared expert",
       [](Adapter& adapter) {
         adapter.add("model.layers.1.mlp.shared_expert.up_proj.lora_A.weight", 3, 256);
         adapter.add("model.layers.1.mlp.shared_expert.up_proj.lora_B.weight", 128, 3);
       }},
      {"lora_on_router", unsupported, "router", with_tensor("model.layers.1.mlp.gate.lora_A.weight", 3, 256)},
      {"lora_variant", unsupported, "only lora_A.weight", with_tensor(kUp + "lora_magnitude_vector", 128, 1)},
      {"unknown_parameter", corrupt, "names neither",
       [](Adapter& adapter) {
         adapter.add("model.layers.1.mlp.experts.lora_A.weight", 12, 256);
         adapter.add("model.layers.1.mlp.experts.lora_B.weight", 256, 12);
       }},
      {"unknown_parameter", corrupt, "names one",
       [](Adapter& adapter) {
         adapter.config = kStacks;
         adapter.add("model.layers.0.mlp.experts.base_layer.lora_A.weight", 12, 256);
         adapter.add("model.layers.0.mlp.experts.base_layer.lora_B.weight", 256, 12);
       }},
      {"lora_square_stack", unsupported, "peft_version",
       [](Adapter& adapter) {
         adapter.config = kStacks;
         testing::EditableModel::replace(adapter.config, "\"peft_version\": \"0.19.1\",", "");
         adapter.add("model.layers.0.mlp.experts.lora_A.weight", 12, 256);
         adapter.add("model.layers.0.mlp.experts.lora_B.weight", 256, 12);
       }},
      {"nothing_adapted", corrupt, "none of an expert",
       [](Adapter& adapter) {
         adapter.tensors.clear();
         adapter.add("model.layers.1.self_attn.q_proj.lora_A.weight", 3, 256);
       }},
      {"lora_variant", unsupported, "use_dora", with_config("\"use_dora\": true")},
      {"lora_variant", unsupported, "init_lora_weights pissa",
       with_config("\"init_lora_weights\": \"pissa_niter_4\"")},
      {"lora_variant", unsupported, "peft_type LOHA",
       [](Adapter& adapter) { testing::EditableModel::replace(adapter.config, "LORA", "LOHA"); }},
      {"config_missing_key", corrupt, "lora_alpha",
       [](Adapter& adapter) { testing::EditableModel::replace(adapter.config, ", \"lora_alpha\": 6", ""); }},
      {"config_out_of_range", corrupt, "r is 0",
       [](Adapter& adapter) { testing::EditableModel::replace(adapter.config, "\"r\": 3", "\"r\": 0"); }},
      {"config_contradiction", corrupt, "different numbers",
       with_config("\"rank_pattern\": {\"up_proj\": 3, \".*up_proj\": 4}")},
  };
}

TEST(LoraRefused, EveryOneWithItsOwnMessage) {
  const Checkpoint model = fixture("qwen3_moe_fp8_block");
  EXPECT_EQ(good_adapter().open(model).layers(), std::vector<int>{1});
  std::set<std::string> messages;
  for (const Spoilt& spoilt : spoilt_adapters()) {
    SCOPED_TRACE(spoilt.says);
    Adapter adapter = good_adapter();
    spoilt.spoil(adapter);
    try {
      adapter.open(model);
      ADD_FAILURE() << "accepted, expected " << spoilt.code;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), spoilt.kind) << error.what();
      EXPECT_EQ(error.info().code, spoilt.code) << error.what();
      EXPECT_NE(std::string(error.what()).find(spoilt.says), std::string::npos) << error.what();
      EXPECT_FALSE(error.info().file.empty() || error.info().todo.empty()) << error.what();
      EXPECT_TRUE(messages.insert(error.info().what + error.info().why).second)
          << "said twice: " << error.what();
    }
  }
}

TEST(LoraRefused, EveryCodeIsDocumented) {
  const std::string docs = testing::read_file(fs::path(SLUICE_SOURCE_DIR) / "docs/checkpoints.md");
  for (const Spoilt& spoilt : spoilt_adapters())
    EXPECT_NE(docs.find("`" + std::string(spoilt.code) + "`"), std::string::npos) << spoilt.code;
  EXPECT_NE(docs.find("`not_finite`"), std::string::npos);
}

TEST(LoraRefused, ValuesThatAreNotFinite) {
  const Checkpoint model = fixture("qwen3_moe_fp8_block");
  Adapter adapter = good_adapter();
  const float infinite = std::numeric_limits<float>::infinity();
  std::memcpy(adapter.tensors[1].bytes.data() + 40, &infinite, 4);
  const Lora lora = adapter.open(model);
  try {
    lora.adapter(1);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.info().code, "not_finite");
  }
}

TEST(LoraRefused, APickle) {
  const Checkpoint model = fixture("qwen3_moe_fp8_block");
  const testing::TemporaryDirectory directory;
  testing::write_file(directory.path() / "adapter_config.json", Adapter().config);
  testing::write_file(directory.path() / "adapter_model.bin", "PK");
  try {
    Lora::open(directory.path().string(), model);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.info().code, "pickle_not_read");
    EXPECT_EQ(error.kind(), ErrorKind::unsupported);
  }
}

}  // namespace
}  // namespace sluice
