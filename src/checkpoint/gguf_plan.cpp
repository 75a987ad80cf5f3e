// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/gguf_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "checkpoint/families/family.h"
#include "checkpoint/gguf_architectures.h"
#include "checkpoint/text.h"
#include "core/error.h"

namespace sluice::checkpoint {
namespace {

constexpr double kLeastLimit = 1e-6;  // llama.cpp's: at or below it there is no limit
constexpr double kLeastScale = 1e-6;  // a factor of zero would silence every expert
constexpr int kGlm47LiteVocabulary = 154'880;

/// expert_gating_func, as llama.cpp numbers it.
constexpr std::array<std::string_view, 5> kScores = {"", "softmax", "sigmoid", "softmax_selected",
                                                     "sqrt_softplus"};

class Planner {
 public:
  Planner(const GgufFiles& files, std::string name, const Architecture& architecture, bool known)
      : files_(files), keys_(files.metadata()), arch_(architecture), known_(known) {
    plan_.architecture = std::move(name);
    plan_.family = std::string(arch_.family);
  }

  GgufPlan plan() {
    count_layers();
    refuse_unknown_limits();
    const GgufLayerPlan pattern = read_pattern();
    for (const int layer : sparse_layers()) plan_.moe_layers.push_back(of_layer(pattern, layer));
    if (!known_)
      plan_.notes.push_back(
          fmt::format("the architecture {} is not known: the router by its keys, experts with "
                      "SiLU and no limit were assumed",
                      printable(plan_.architecture)));
    return std::move(plan_);
  }

 private:
  std::string key(std::string_view name) const { return fmt::format("{}.{}", plan_.architecture, name); }

  void note_default(std::string_view name, std::string_view used) {
    plan_.notes.push_back(
        fmt::format("{} is not in the file; {} is what {} has", key(name), used, plan_.architecture));
  }

  bool has_layer(int layer, std::string_view below) const {
    return !files_.below(fmt::format("blk.{}.{}", layer, below)).empty();
  }

  void count_layers() {
    const int all = keys_.integer(key("block_count"), limits::kLayers);
    int more = keys_.integer_or(key("nextn_predict_layers"), {0, limits::kLayers.last}, 0);
    if (more >= all)
      keys_.refuse("gguf_contradiction", key("nextn_predict_layers"),
                   fmt::format("it is {}, and block_count is {}", more, all));
    // DeepSeek-V4 files say how many there are and may leave them out, also of block_count.
    if (arch_.hash_layers && !has_layer(all - more, "nextn.eh_proj")) more = 0;
    plan_.layers = all - more;
    if (more > 0)
      plan_.notes.push_back(
          fmt::format("layers from {} on (multi-token prediction) are not used", plan_.layers));
  }

  RouterSpec read_router() {
    RouterSpec router{.score = read_score(),
                      .experts = keys_.integer(key("expert_count"), limits::kExperts),
                      .top_k = keys_.integer(key("expert_used_count"), limits::kExperts)};
    if (router.top_k > router.experts)
      keys_.refuse("gguf_key_out_of_range", key("expert_used_count"),
                   fmt::format("it is {} of {} experts", router.top_k, router.experts));
    read_groups(router);
    router.renormalise = read_renormalise();
    read_scale(router);
    return router;
  }

  Score read_score() {
    constexpr std::string_view kKey = "expert_gating_func";
    const bool there = keys_.has(key(kKey)) && keys_.integer(key(kKey), {0, 1'000}) != 0;
    if (!there && arch_.score_by == By::key) missing(kKey);
    if (!there || arch_.score_by == By::architecture) return default_score(there, kKey);
    const int number = keys_.integer(key(kKey), {1, 1'000});
    if (number >= static_cast<int>(kScores.size()))
      keys_.refuse(
          "unknown_router", key(kKey),
          fmt::format("it is {}; known are 1 (softmax), 2 (sigmoid), 3 (softmax over the selected) and 4 "
                      "(square root of softplus)",
                      number));
    const std::string_view score = kScores[static_cast<std::size_t>(number)];
    if (arch_.hash_layers && score != arch_.score)
      keys_.refuse("gguf_contradiction", key(kKey), fmt::format("it is {}, this architecture has 4", number));
    return known<Score>(score);
  }

  Score default_score(bool there, std::string_view name) {
    std::string_view score = arch_.score;
    // GLM-4.7-Flash came as deepseek2, first without the key.
    const bool lite = arch_.name == "deepseek2" && (plan_.layers == 47 || plan_.layers == 48) &&
                      keys_.length("tokenizer.ggml.tokens") == kGlm47LiteVocabulary;
    if (lite) score = "sigmoid";
    if (!there) note_default(name, score);
    if (there && kScores[static_cast<std::size_t>(std::min(keys_.integer(key(name), {1, 1'000}),
                                                           static_cast<int>(kScores.size()) - 1))] != score)
      plan_.notes.push_back(fmt::format("{} is not heeded: {} has {}", key(name), plan_.architecture, score));
    return known<Score>(score);
  }

  [[noreturn]] void missing(std::string_view name) const {
    if (known_) keys_.refuse("gguf_missing_key", key(name), "it is not there, and nothing stands in for it");
    fail(ErrorKind::unsupported,
         {.code = "gguf_unknown_architecture",
          .what = fmt::format("the architecture {} is not known, and {} is not in the file",
                              printable(plan_.architecture), key(name)),
          .file = keys_.file_name(),
          .why = "what its router computes would be a guess",
          .todo = "Use the model's safetensors, or a file with that key"});
  }

  void read_groups(RouterSpec& router) {
    router.groups = std::max(1, keys_.integer_or(key("expert_group_count"), {0, limits::kExperts.last}, 1));
    if (router.groups == 1) return;
    router.groups_kept = keys_.integer(key("expert_group_used_count"), limits::kExperts);
    if (router.experts % router.groups != 0 || router.groups_kept > router.groups)
      keys_.refuse(
          "gguf_contradiction", key("expert_group_count"),
          fmt::format("{} of {} groups of {} experts", router.groups_kept, router.groups, router.experts));
  }

  bool read_renormalise() {
    constexpr std::string_view kKey = "expert_weights_norm";
    const auto stored = keys_.flag(key(kKey));
    if (arch_.renormalise_by == By::architecture) {
      if (!stored) note_default(kKey, arch_.renormalise ? "true" : "false");
      if (stored && *stored != arch_.renormalise)
        plan_.notes.push_back(
            fmt::format("{} is not heeded: {} has {}", key(kKey), plan_.architecture, arch_.renormalise));
      return arch_.renormalise;
    }
    if (stored) return *stored;
    if (arch_.renormalise_by == By::key) missing(kKey);
    note_default(kKey, arch_.renormalise ? "true" : "false");
    return arch_.renormalise;
  }

  void read_scale(RouterSpec& router) {
    const std::string name = key("expert_weights_scale");
    const double stored = keys_.number(name).value_or(0);
    if (stored == 0 || stored == 1) return;  // 0 is none, too
    if (stored < kLeastScale) keys_.refuse("gguf_key_out_of_range", name, fmt::format("it is {}", stored));
    if (arch_.scale_key)
      router.scale = static_cast<float>(stored);
    else
      plan_.notes.push_back(fmt::format("{} is not heeded: {} does not scale", name, plan_.architecture));
  }

  GgufLayerPlan read_pattern() {
    return {.hidden = keys_.integer(key("embedding_length"), limits::kWidth),
            .router = read_router(),
            .activation = known<Activation>(arch_.clamp == Clamp::after_silu ? "silu_then_clamp" : "silu"),
            .weight_on_input = arch_.weight_on_input,
            .biases = arch_.biases};
  }

  bool is_sparse_by_tensors(int layer) const {
    for (const char* below :
         {"ffn_gate_inp.", "ffn_down_exps.", "ffn_up_exps.", "ffn_gate_up_exps.", "ffn_down.0."})
      if (has_layer(layer, below)) return true;
    return false;
  }

  /// Layers with experts: those that have their tensors. Where keys say which they are, both must agree.
  std::vector<int> sparse_layers() {
    const int dense = keys_.integer_or(key("leading_dense_block_count"), {0, limits::kLayers.last}, 0);
    const int step = arch_.step ? keys_.integer_or(key("interleave_moe_layer_step"), limits::kLayers, 1) : 1;
    std::vector<int> sparse;
    for (int layer = 0; layer < plan_.layers; ++layer) {
      const bool expected = layer >= dense && (layer + 1) % step == 0, there = is_sparse_by_tensors(layer);
      if (there != expected && !arch_.layers_by_tensors) refuse_layer(layer, expected);
      if (there) sparse.push_back(layer);
    }
    if (sparse.empty())
      keys_.refuse("gguf_no_experts", key("expert_count"), "no layer of the file has experts");
    return sparse;
  }

  [[noreturn]] void refuse_layer(int layer, bool expected) const {
    fail(ErrorKind::corrupt_file,
         {.code = expected ? "missing_tensor" : "gguf_contradiction",
          .what = fmt::format("layer {} has {} experts, and by {} and the architecture it has {}", layer,
                              expected ? "no" : "its", key("leading_dense_block_count"),
                              expected ? "some" : "none"),
          .file = files_.described(),
          .tensor = fmt::format("blk.{}.ffn_gate_inp.weight", layer),
          .todo = "Fetch the file again, all parts of it"});
  }

  int wide_of(int layer) const {
    const std::string own = key("expert_feed_forward_length"), dense = key("feed_forward_length");
    const bool by_own = arch_.wide == Wide::expert || (arch_.wide != Wide::dense && keys_.has(own));
    if (by_own) return keys_.integer_of_layer(own, limits::kWidth, layer, plan_.layers);
    const int whole = keys_.integer_of_layer(dense, limits::kWidth, layer, plan_.layers);
    return arch_.wide == Wide::expert_or_part
               ? whole / keys_.integer(key("expert_used_count"), limits::kExperts)
               : whole;
  }

  int shared_count() const {
    return keys_.integer_or(key("expert_shared_count"), {0, limits::kExperts.last}, 0);
  }

  /// Its width, or 0 where there is none.
  std::int64_t shared_wide(int layer, int routed) const {
    constexpr IntRange kOptional{0, limits::kWidth.last};
    const int own = keys_.integer_or(key("expert_shared_feed_forward_length"), kOptional, 0);
    switch (arch_.shared) {
      case SharedWide::none:
        return 0;
      case SharedWide::routed:
        return routed;
      case SharedWide::count_times_routed:
        return std::int64_t{routed} * shared_count();
      case SharedWide::own:
        return own;
      case SharedWide::own_or_dense:
        return own > 0
                   ? own
                   : keys_.integer_of_layer(key("feed_forward_length"), limits::kWidth, layer, plan_.layers);
      case SharedWide::count_times_own:
        return std::int64_t{own > 0 ? own : routed} * shared_count();
    }
    return 0;
  }

  /// No limit where the key is absent or next to 0.
  ActivationParams limit_of(std::string_view name, int layer) const {
    if (!keys_.has(key(name))) return {};
    const double limit = keys_.number_of_layer(key(name), layer, plan_.layers);
    if (limit < 0)
      keys_.refuse("gguf_key_out_of_range", key(name), fmt::format("it is {} for layer {}", limit, layer));
    if (limit <= kLeastLimit) return {};
    return {.limit = static_cast<float>(limit)};
  }

  void refuse_unknown_limits() const {
    for (const GgufKey& one : keys_.keys()) {
      const bool about =
          one.name.find("swiglu") != one.name.npos ||
          (one.name.find("clamp") != one.name.npos && one.name.find("clamp_kqv") == one.name.npos);
      const bool read = (arch_.clamp == Clamp::before || arch_.clamp == Clamp::after_silu) &&
                        (one.name == key("swiglu_clamp_exp") || one.name == key("swiglu_clamp_shexp"));
      require(!about || read, ErrorKind::unsupported, [&] {
        return ErrorInfo{.code = "unknown_limit",
                         .what = fmt::format("the file has {}, which {} does not define", printable(one.name),
                                             printable(plan_.architecture)),
                         .file = keys_.file_name(),
                         .why = "a limit that is not applied makes outputs wrong without a word",
                         .todo = "Use the model's safetensors, or report the architecture"};
      });
    }
  }

  GgufLayerPlan of_layer(GgufLayerPlan plan, int layer) {
    plan.layer = layer;
    plan.intermediate = wide_of(layer);
    if (arch_.clamp == Clamp::before && !keys_.has(key("swiglu_clamp_exp"))) missing("swiglu_clamp_exp");
    plan.params = limit_of("swiglu_clamp_exp", layer);
    if (arch_.clamp == Clamp::gpt_oss) plan.params = {.limit = 7.0f, .slope = 1.702f, .shift = 1.0f};
    plan.selection_bias = arch_.selection_bias;
    if (arch_.hash_layers) {
      plan.by_token_id = layer < keys_.integer(key("hash_layer_count"), {0, limits::kLayers.last});
      if (plan.by_token_id) plan.selection_bias = Has::no;
    }
    const std::int64_t wide = shared_wide(layer, plan.intermediate);
    if (wide > limits::kWidth.last)
      keys_.refuse("gguf_key_out_of_range", key("expert_shared_count"),
                   fmt::format("makes {} columns", wide));
    if (wide > 0)
      plan.shared = GgufSharedPlan{.intermediate = static_cast<int>(wide),
                                   .params = shared_params(plan, layer),
                                   .sigmoid_gate = arch_.shared_gate};
    return plan;
  }

  ActivationParams shared_params(const GgufLayerPlan& plan, int layer) const {
    if (arch_.clamp == Clamp::before && !keys_.has(key("swiglu_clamp_shexp"))) return plan.params;
    return limit_of("swiglu_clamp_shexp", layer);
  }

  const GgufFiles& files_;
  GgufMetadata keys_;
  const Architecture& arch_;
  const bool known_;
  GgufPlan plan_;
};

}  // namespace

GgufPlan plan_gguf(const GgufFiles& files) {
  const GgufMetadata keys = files.metadata();
  const std::string name = keys.text("general.architecture");
  const std::string_view why = why_not_read(name);
  require(why.empty(), ErrorKind::unsupported, [&] {
    return ErrorInfo{.code = "gguf_unread_architecture",
                     .what = fmt::format("GGUF files of the architecture {} are not read", name),
                     .file = keys.file_name(),
                     .why = std::string(why),
                     .todo = "Use the model's safetensors"};
  });
  const std::string experts = name + ".expert_count";
  if (keys.integer_or(experts, {0, limits::kExperts.last}, 0) == 0)
    keys.refuse("gguf_no_experts", experts, "it is 0 or not there: the model has no experts");
  const Architecture* architecture = find_architecture(name);
  return Planner(files, name, architecture ? *architecture : kUnknownArchitecture, architecture != nullptr)
      .plan();
}

}  // namespace sluice::checkpoint
