// SPDX-License-Identifier: Apache-2.0
#include "testing/layer_input.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <set>

#include "core/error.h"

namespace sluice::testing {

namespace {

/// The tensors of one layer in a file: "3.hidden", or "hidden" when the file is for one layer.
class LayerTensors {
 public:
  LayerTensors(const TensorFile& file, int layer)
      : file_(file), plain_(file.has("hidden")), prefix_(plain_ ? "" : std::to_string(layer) + ".") {}

  /// The file was made for one layer, so everything in it is an input.
  bool plain() const { return plain_; }

  bool has(const char* name) const { return file_.has(prefix_ + name); }

  /// The tensor, or null when the file has none. A dimension of -1 takes any size.
  const TensorView* find(const char* name, std::initializer_list<DType> types,
                         std::vector<std::int64_t> shape) const {
    if (!has(name)) return nullptr;
    const TensorView& tensor = file_.at(prefix_ + name);
    require_type(name, tensor, types);
    require_shape(name, tensor, shape);
    return &tensor;
  }

  const TensorView& at(const char* name, std::initializer_list<DType> types,
                       std::vector<std::int64_t> shape) const {
    const TensorView* tensor = find(name, types, std::move(shape));
    if (tensor == nullptr)
      refuse(name, "missing_tensor", "the file lacks a tensor that is needed", has_text());
    return *tensor;
  }

  /// Refuses a name that is none of `known`: a misspelt topk_ids would leave the layer's own router in
  /// charge.
  void require_known(std::initializer_list<std::string_view> known) const {
    for (const std::string& name : file_.names())
      if (std::find(known.begin(), known.end(), name) == known.end())
        refuse(name.c_str(), "unknown_tensor", "the file has a tensor that means nothing here",
               fmt::format("known are {}", fmt::join(known, ", ")));
  }

  [[noreturn]] void refuse(const char* name, const char* code, std::string what, std::string why) const {
    fail(ErrorKind::corrupt_file, {.code = code,
                                   .what = std::move(what),
                                   .file = file_.path(),
                                   .tensor = prefix_ + name,
                                   .why = std::move(why),
                                   .todo = "docs/cli.md lists the tensors that run and check read"});
  }

 private:
  void require_type(const char* name, const TensorView& tensor, std::initializer_list<DType> types) const {
    if (std::find(types.begin(), types.end(), tensor.dtype) != types.end()) return;
    std::vector<std::string_view> wanted;
    for (DType type : types) wanted.push_back(sluice::name(type));
    refuse(name, "wrong_dtype", "a tensor has the wrong element type",
           fmt::format("it is {}, expected {}", sluice::name(tensor.dtype), fmt::join(wanted, " or ")));
  }

  void require_shape(const char* name, const TensorView& tensor,
                     const std::vector<std::int64_t>& shape) const {
    const bool fits =
        std::equal(tensor.shape.begin(), tensor.shape.end(), shape.begin(), shape.end(),
                   [](std::int64_t has, std::int64_t wanted) { return wanted < 0 || has == wanted; });
    if (fits) return;
    std::vector<std::string> wanted;
    for (std::int64_t size : shape) wanted.push_back(size < 0 ? "tokens" : std::to_string(size));
    refuse(name, "wrong_shape", "a tensor has the wrong shape",
           fmt::format("it is {}, expected [{}]", tensor.shape_text(), fmt::join(wanted, ", ")));
  }

  std::string has_text() const {
    const auto& names = file_.names();
    constexpr std::size_t kMost = 8;
    const std::size_t shown = std::min(kMost, names.size());
    return fmt::format("it has {}{}",
                       fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
                       shown < names.size() ? ", ..." : "");
  }

  const TensorFile& file_;
  const bool plain_;
  const std::string prefix_;
};

/// The elements as `T`, from a tensor of exactly that type.
template <class T>
std::vector<T> elements(const TensorView& tensor) {
  std::vector<T> values(static_cast<std::size_t>(tensor.elements()));
  if (!values.empty()) std::memcpy(values.data(), tensor.data, tensor.bytes());
  return values;
}

/// i32 or i64; nothing when there is no tensor.
std::vector<std::int64_t> integers(const TensorView* tensor) {
  if (tensor == nullptr) return {};
  if (tensor->dtype == DType::i64) return elements<std::int64_t>(*tensor);
  const std::vector<std::int32_t> values = elements<std::int32_t>(*tensor);
  return {values.begin(), values.end()};
}

/// "topk_ids" [tokens, top_k]: experts of the layer, or -1 for none.
std::vector<std::int32_t> expert_ids(const LayerTensors& tensors, std::int64_t tokens,
                                     const ExpertsSpec& spec) {
  std::vector<std::int32_t> ids;
  for (const std::int64_t id :
       integers(tensors.find("topk_ids", {DType::i32, DType::i64}, {tokens, spec.top_k}))) {
    if (id < -1 || id >= spec.experts)
      tensors.refuse("topk_ids", "bad_expert_id", "the file names an expert that the layer has not",
                     fmt::format("id {} at token {}; ids lie in 0 to {}, and -1 is none", id,
                                 std::ssize(ids) / spec.top_k, spec.experts - 1));
    ids.push_back(static_cast<std::int32_t>(id));
  }
  return ids;
}

std::vector<float> floats_or_nothing(const TensorView* tensor) {
  return tensor == nullptr ? std::vector<float>() : elements<float>(*tensor);
}

/// What decides the routing, from a file that was made as an input.
void read_routing(const LayerTensors& tensors, const LayerSpec& spec, LayerInput& input) {
  const std::int64_t tokens = input.hidden.rows, top_k = spec.routed.top_k;
  // Results are no inputs, but a layer cut out of a file of expected outputs has them.
  tensors.require_known({"hidden", "input_ids", "router_logits", "topk_ids", "topk_weights", "experts_out",
                         "experts_out_noclamp", "block_out", "adapter_ids"});
  for (const std::int64_t id : integers(tensors.find("adapter_ids", {DType::i32, DType::i64}, {tokens}))) {
    if (id < -1 || id > std::numeric_limits<std::int32_t>::max())
      tensors.refuse("adapter_ids", "bad_adapter_id", "the file names an adapter that there cannot be",
                     fmt::format("id {} at token {}; -1 is none", id, input.adapter_ids.size()));
    input.adapter_ids.push_back(static_cast<std::int32_t>(id));
  }
  input.router_logits =
      floats_or_nothing(tensors.find("router_logits", {DType::f32}, {tokens, spec.router.experts}));
  input.topk_ids = expert_ids(tensors, tokens, spec.routed);
  if (tensors.has("topk_ids") || tensors.has("topk_weights")) {
    tensors.at("topk_ids", {DType::i32, DType::i64}, {tokens, top_k});
    input.topk_weights = elements<float>(tensors.at("topk_weights", {DType::f32}, {tokens, top_k}));
    input.router_logits.clear();
  }
}

}  // namespace

Routing LayerInput::routing() const {
  if (topk_ids.empty()) return {};
  const auto rows = static_cast<std::size_t>(hidden.rows);
  return {topk_ids.data(), topk_weights.data(), hidden.rows, static_cast<int>(topk_ids.size() / rows)};
}

std::string LayerInput::routed_by() const {
  if (!topk_ids.empty()) return "topk_ids";
  return router_logits.empty() ? "router" : "router_logits";
}

LayerInput read_layer_input(const TensorFile& file, int layer, const LayerSpec& spec) {
  const LayerTensors tensors(file, layer);
  const TensorView& hidden = tensors.at("hidden", {DType::bf16, DType::f16, DType::f32}, {-1, spec.hidden()});
  if (hidden.shape[0] > kMostTokens)
    tensors.refuse("hidden", "too_many_tokens", "the file has too many tokens for one call",
                   fmt::format("{} of at most {}", hidden.shape[0], kMostTokens));
  LayerInput input;
  input.hidden_bytes.assign(hidden.data, hidden.data + hidden.bytes());
  input.hidden = {.data = input.hidden_bytes.data(),
                  .dtype = hidden.dtype,
                  .rows = static_cast<int>(hidden.shape[0]),
                  .width = spec.hidden(),
                  .row_stride = std::ptrdiff_t{spec.hidden()} * bits(hidden.dtype) / 8};
  input.token_ids = integers(tensors.find("input_ids", {DType::i64, DType::i32}, {input.hidden.rows}));
  if (tensors.plain()) read_routing(tensors, spec, input);
  return input;
}

void check_token_ids(const TensorFile& file, int layer, const LayerSpec& spec, const LayerWeights& weights,
                     const LayerInput& input) {
  if (!spec.router.by_token_id || !input.topk_ids.empty() || input.hidden.rows == 0) return;
  const LayerTensors tensors(file, layer);
  tensors.at("input_ids", {DType::i64, DType::i32}, {input.hidden.rows});
  const std::int64_t vocabulary = std::ssize(weights.router.table) / spec.router.top_k;
  for (std::size_t token = 0; token < input.token_ids.size(); ++token)
    if (const std::int64_t id = input.token_ids[token]; id < 0 || id >= vocabulary)
      tensors.refuse("input_ids", "bad_token_id",
                     "the file has a token id that the layer's routing table has not",
                     fmt::format("id {} at token {}; the table has {} rows", id, token, vocabulary));
}

ExpectedOutputs read_expected(const TensorFile& file, int layer, const LayerSpec& spec, int tokens) {
  const LayerTensors tensors(file, layer);
  const std::int64_t rows = tokens, hidden = spec.hidden(), top_k = spec.routed.top_k;
  ExpectedOutputs expected;
  expected.experts_out = floats_or_nothing(tensors.find("experts_out", {DType::f32}, {rows, hidden}));
  expected.block_out = floats_or_nothing(tensors.find("block_out", {DType::f32}, {rows, hidden}));
  expected.topk_weights = floats_or_nothing(tensors.find("topk_weights", {DType::f32}, {rows, top_k}));
  expected.topk_ids = expert_ids(tensors, rows, spec.routed);
  if (tokens == 0)
    tensors.refuse("hidden", "nothing_expected", "the file has no tokens of this layer",
                   "with 0 rows every comparison would pass");
  if (expected.topk_ids.empty() && !expected.topk_weights.empty())
    tensors.refuse("topk_ids", "missing_tensor", "the file has topk_weights without the ids they belong to",
                   "weights are compared expert by expert");
  if (!tensors.has("experts_out") && !tensors.has("block_out"))
    tensors.refuse("block_out", "missing_tensor", "the file has no expected output of this layer",
                   "it has neither experts_out nor block_out");
  return expected;
}

std::vector<int> expected_layers(const TensorFile& file) {
  constexpr std::string_view kSuffix = ".hidden";
  std::set<int> layers;
  for (const std::string& name : file.names()) {
    if (!name.ends_with(kSuffix)) continue;
    int layer = 0;
    const char* const end = name.data() + name.size() - kSuffix.size();
    const auto [stop, error] = std::from_chars(name.data(), end, layer);
    if (error == std::errc() && stop == end && layer >= 0) layers.insert(layer);
  }
  return {layers.begin(), layers.end()};
}

}  // namespace sluice::testing
