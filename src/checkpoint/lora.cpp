// SPDX-License-Identifier: Apache-2.0
// Lora: a PEFT adapter, held against the model it is for.
#include "sluice/lora.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>

#include "checkpoint/lora_config.h"
#include "checkpoint/lora_names.h"
#include "checkpoint/lora_views.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/text.h"
#include "core/error.h"
#include "format/scales.h"
#include "sluice/checkpoint.h"

namespace sluice {

using namespace checkpoint;

struct Lora::State {
  std::string directory;
  TensorFile file;
  std::vector<int> layers = {};
  std::vector<std::string> notes = {};
  std::map<int, LoraAdapter> adapters = {};  // views of the file
};

namespace {

constexpr std::size_t kConfigBytes = 64'000'000;

/// The two tensors of a module.
struct Pair {
  LoraName name;
  std::string a_name, b_name;  // empty: not seen
  const TensorView *a = nullptr, *b = nullptr;
};

/// A delta's shapes as a message shows them, and as they are compared.
struct Expected {
  std::vector<std::int64_t> a, b;
};

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

class AdapterReader {
 public:
  AdapterReader(const TensorFile& file, const LoraConfig& config, const Checkpoint& model)
      : file_(file), config_(config), model_(model), rule_(stack_rule(model.info().family)) {}

  std::map<int, LoraAdapter> read(std::vector<std::string>& notes) {
    collect(notes);
    for (const auto& [key, pair] : pairs_) {
      require_both(pair);
      const LayerSpec spec = model_.spec(pair.name.layer);
      LoraAdapter& adapter = adapters_[pair.name.layer];
      if (pair.name.target == LoraTarget::stack || pair.name.target == LoraTarget::inner_stack) {
        read_stack(pair, spec, routed(adapter, spec));
      } else {
        read_single(pair, spec, adapter);
      }
    }
    return std::move(adapters_);
  }

 private:
  [[noreturn]] void refuse(ErrorKind kind, const char* code, const std::string& tensor,
                           std::string why) const {
    const bool corrupt = kind == ErrorKind::corrupt_file;
    fail(kind,
         {.code = code,
          .what = corrupt ? "the adapter does not fit the model" : "the adapter cannot be applied here",
          .file = file_.path(),
          .tensor = printable(tensor),
          .why = std::move(why),
          .todo = corrupt ? "Use the adapter with the model it was trained on, and its adapter_config.json"
                          : "Merge the adapter into the model, or train it without this module"});
  }

  void collect(std::vector<std::string>& notes) {
    std::size_t elsewhere = 0;
    const std::vector<int>& layers = model_.info().moe_layers;
    for (const std::string& tensor : file_.names()) {
      const LoraName name = parse_lora_name(tensor);
      const bool here = std::find(layers.begin(), layers.end(), name.layer) != layers.end();
      if (name.target == LoraTarget::elsewhere || !here) {
        ++elsewhere;
      } else {
        add(tensor, name);
      }
    }
    if (elsewhere > 0)
      notes.push_back(
          fmt::format("{} of {} tensors are for parts of the model that are no MoE block; they are not "
                      "applied",
                      elsewhere, file_.names().size()));
  }

  void add(const std::string& tensor, const LoraName& name) {
    if (name.target == LoraTarget::router)
      refuse(ErrorKind::unsupported, "lora_on_router", tensor,
             "adapters act on experts; a router's is not applied");
    if (name.target == LoraTarget::unknown)
      refuse(ErrorKind::corrupt_file, "unused_tensor", tensor, "the MoE block has no such module");
    const bool is_a = name.leaf == "lora_A.weight";
    if (!is_a && name.leaf != "lora_B.weight")
      refuse(ErrorKind::unsupported, "lora_variant", tensor,
             "only lora_A.weight and lora_B.weight are applied");
    Pair& pair = pairs_[name.module + (name.target == LoraTarget::inner_stack ? ".base_layer" : "")];
    pair.name = name;
    (is_a ? pair.a_name : pair.b_name) = tensor;
    (is_a ? pair.a : pair.b) = &file_.at(tensor);
  }

  void require_both(const Pair& pair) const {
    const bool has_a = pair.a != nullptr;
    if (!has_a || pair.b == nullptr)
      refuse(ErrorKind::corrupt_file, "missing_tensor", has_a ? pair.a_name : pair.b_name,
             fmt::format("there is no {} for it", has_a ? "lora_B" : "lora_A"));
    for (const auto& [tensor, view] : {std::pair(pair.a_name, pair.a), std::pair(pair.b_name, pair.b)})
      if (view->dtype != DType::f32 && view->dtype != DType::f16 && view->dtype != DType::bf16)
        refuse(ErrorKind::corrupt_file, "wrong_dtype", tensor,
               fmt::format("it is {}, expected F32, F16 or BF16", sluice::name(view->dtype)));
  }

  /// `why` says where the expected numbers come from.
  void require_shapes(const Pair& pair, const Expected& expected, const std::string& why) const {
    if (pair.a->shape != expected.a)
      refuse(ErrorKind::corrupt_file, "wrong_shape", pair.a_name,
             fmt::format("it is {}, expected {}: {}", pair.a->shape_text(), shape_text(expected.a), why));
    if (pair.b->shape != expected.b)
      refuse(ErrorKind::corrupt_file, "wrong_shape", pair.b_name,
             fmt::format("it is {}, expected {}: {}", pair.b->shape_text(), shape_text(expected.b), why));
  }

  static std::vector<LoraExpert>& routed(LoraAdapter& adapter, const LayerSpec& spec) {
    adapter.routed.resize(static_cast<std::size_t>(spec.routed.local_experts));
    return adapter.routed;
  }

  /// A module of one expert, or of the shared expert.
  void read_single(const Pair& pair, const LayerSpec& spec, LoraAdapter& adapter) const {
    const bool shared = pair.name.expert < 0;
    if (shared && !spec.shared)
      refuse(ErrorKind::corrupt_file, "unused_tensor", pair.a_name, "the layer has no shared expert");
    if (!shared && pair.name.expert >= spec.routed.experts)
      refuse(ErrorKind::corrupt_file, "unused_tensor", pair.a_name,
             fmt::format("the layer has {} experts", spec.routed.experts));
    const ExpertsSpec& experts = shared ? spec.shared->experts : spec.routed;
    if (shared) adapter.shared.resize(1);
    LoraExpert& expert =
        shared ? adapter.shared[0] : routed(adapter, spec)[static_cast<std::size_t>(pair.name.expert)];
    const std::int64_t hidden = experts.hidden, intermediate = experts.intermediate;
    const bool down = pair.name.target == LoraTarget::down;
    const WeightShape weight = down ? WeightShape{hidden, intermediate} : WeightShape{intermediate, hidden};
    if (pair.name.target == LoraTarget::gate && !experts.formats.gate)
      refuse(ErrorKind::corrupt_file, "unused_tensor", pair.a_name, "the layer's experts have no gate");

    const std::int64_t rank = config_.rank(pair.name.module);
    require_shapes(pair, {{rank, weight.in}, {weight.out, rank}},
                   fmt::format("rank {}, the weight is [{}, {}]", rank, weight.out, weight.in));
    LoraDelta& delta = down ? expert.down : pair.name.target == LoraTarget::up ? expert.up : expert.gate;
    delta = {matrix_of(*pair.a), matrix_of(*pair.b), config_.scale(pair.name.module)};
  }

  /// "gate_up_proj" or "down_proj". Wrappers nest in the order of the module's parameters: gate_up_proj
  /// inside.
  std::string parameter_of(const Pair& pair) const {
    const bool gate_up = config_.targets(pair.name.module + ".gate_up_proj");
    const bool down = config_.targets(pair.name.module + ".down_proj");
    const bool inner = pair.name.target == LoraTarget::inner_stack;
    if ((!gate_up && !down) || (inner && !(gate_up && down)))
      refuse(
          ErrorKind::corrupt_file, "unknown_parameter", pair.a_name,
          fmt::format("target_parameters of adapter_config.json names {} of {}.gate_up_proj and .down_proj",
                      gate_up || down ? "one" : "neither", pair.name.module));
    return inner || !down ? "gate_up_proj" : "down_proj";
  }

  void read_stack(const Pair& pair, const LayerSpec& spec, std::vector<LoraExpert>& experts) const {
    const ExpertsSpec& routed = spec.routed;
    const std::string parameter = parameter_of(pair), module = pair.name.module + "." + parameter;
    const bool down = parameter == "down_proj";
    const std::int64_t hidden = routed.hidden, intermediate = routed.intermediate;
    if (!down && !routed.formats.gate)
      refuse(ErrorKind::corrupt_file, "unused_tensor", pair.a_name, "the layer's experts have no gate");
    const LoraStack stack{
        .a = *pair.a,
        .b = *pair.b,
        .experts = routed.experts,
        .rank = config_.rank(module),
        .weight = down ? WeightShape{hidden, intermediate} : WeightShape{2 * intermediate, hidden}};
    const bool swapped = reads_outputs(pair, stack);
    for (std::size_t e = 0; e < experts.size(); ++e) {
      const std::int64_t number = static_cast<std::int64_t>(e);
      LoraDelta delta = swapped ? swapped_part(stack, number) : plain_part(stack, number);
      delta.scale = config_.scale(module);
      if (down) experts[e].down = delta;
      if (!down) experts[e].gate = gate_of(delta, rule_.gate_up);
      if (!down) experts[e].up = up_of(delta, rule_.gate_up);
    }
  }

  /// Whether A of the stack reads the weight's outputs. The shapes say it, except of a square weight.
  bool reads_outputs(const Pair& pair, const LoraStack& stack) const {
    const std::int64_t all = stack.experts * stack.rank, out = stack.weight.out, in = stack.weight.in;
    const Expected plain{{all, in}, {out, all}}, swapped{{all, out}, {in, all}};
    const auto fits = [&](const Expected& each) {
      return pair.a->shape == each.a && pair.b->shape == each.b;
    };
    const std::string why =
        fmt::format("rank {}, {} experts of [{}, {}]", stack.rank, stack.experts, out, in);
    if (rule_.order == StackOrder::inputs_first || !fits(swapped)) {
      require_shapes(pair, plain, why);
      return false;
    }
    if (!fits(plain)) return true;
    if (!config_.stacks_read_inputs())
      refuse(ErrorKind::unsupported, "lora_square_stack", pair.a_name,
             "the weight is square and adapter_config.json has no peft_version: before 0.19 lora_A and "
             "lora_B stand "
             "in each other's place");
    // What PEFT takes for the inputs are the outputs of a stack that it does not know to be transposed.
    return *config_.stacks_read_inputs() == (rule_.order == StackOrder::inputs_first_unmarked);
  }

  const TensorFile& file_;
  const LoraConfig& config_;
  const Checkpoint& model_;
  const StackRule rule_;
  std::map<std::string, Pair> pairs_;
  std::map<int, LoraAdapter> adapters_;
};

LoraConfig read_config(const std::string& path) {
  const auto file = MappedFile::open(path);
  return LoraConfig(parse_json(text_of(*file, kConfigBytes), path), path);
}

/// Copies of an adapter's matrices, checked, so that a token walks over dense memory: rows of A and columns
/// of B, whose products then fill vectors. A column of a stack of 128 experts would be a cache line a number.
class Copies {
 public:
  explicit Copies(const std::string& path) : path_(path) {}

  void take(std::vector<LoraExpert>& experts) {
    for (LoraExpert& expert : experts)
      for (LoraDelta* delta : {&expert.gate, &expert.up, &expert.down})
        if (*delta) {
          take(delta->a);
          LoraMatrix by_columns = transposed(delta->b);
          take(by_columns);
          delta->b = transposed(by_columns);
        }
  }
  std::shared_ptr<const void> owner() const { return rows_; }

 private:
  void take(LoraMatrix& matrix) {
    const std::ptrdiff_t width = bits(matrix.dtype) / 8;
    std::vector<std::byte> bytes(static_cast<std::size_t>(matrix.rows * matrix.cols * width));
    std::byte* to = bytes.data();
    for (std::int64_t i = 0; i < matrix.rows; ++i)
      for (std::int64_t k = 0; k < matrix.cols; ++k, to += width) {
        const std::byte* from = matrix.data + i * matrix.row_stride + k * matrix.col_stride;
        std::memcpy(to, from, static_cast<std::size_t>(width));
        require(std::isfinite(format::read_number(matrix.dtype, from)), ErrorKind::corrupt_file,
                [&] { return not_finite(format::read_number(matrix.dtype, from)); });
      }
    rows_->push_back(std::move(bytes));
    matrix.data = rows_->back().data();
    matrix.row_stride = matrix.cols * width;
    matrix.col_stride = width;
  }

  ErrorInfo not_finite(float value) const {
    return {.code = "not_finite",
            .what = fmt::format("the adapter has a value of {}", value),
            .file = path_,
            .why = "a training that diverged leaves such values",
            .todo = "Use an earlier checkpoint of the adapter"};
  }

  const std::string& path_;
  std::shared_ptr<std::vector<std::vector<std::byte>>> rows_ =
      std::make_shared<std::vector<std::vector<std::byte>>>();
};

}  // namespace

Lora Lora::open(const std::string& directory, const Checkpoint& model) {
  const std::filesystem::path folder(directory);
  const std::string tensors = (folder / "adapter_model.safetensors").string();
  std::error_code none;
  require(
      std::filesystem::exists(tensors, none) || !std::filesystem::exists(folder / "adapter_model.bin", none),
      ErrorKind::unsupported, [&] {
        return ErrorInfo{.code = "pickle_not_read",
                         .what = "the adapter is a pickle",
                         .file = (folder / "adapter_model.bin").string(),
                         .why = "reading one runs code out of the file",
                         .todo = "Save it again with safe_serialization=True"};
      });
  const LoraConfig config = read_config((folder / "adapter_config.json").string());
  auto state = std::make_shared<State>(State{.directory = directory, .file = TensorFile::open(tensors)});
  state->adapters = AdapterReader(state->file, config, model).read(state->notes);
  for (const auto& [layer, adapter] : state->adapters) state->layers.push_back(layer);
  require(!state->layers.empty(), ErrorKind::corrupt_file, [&] {
    return ErrorInfo{.code = "nothing_adapted",
                     .what = "the adapter has nothing for an MoE block of this model",
                     .file = tensors,
                     .why = fmt::format("{} tensors, none of an expert", state->file.names().size()),
                     .todo = "Check that adapter and model belong together"};
  });
  Lora lora;
  lora.state_ = std::move(state);
  return lora;
}

const std::string& Lora::directory() const { return state_->directory; }
const std::vector<int>& Lora::layers() const { return state_->layers; }
const std::vector<std::string>& Lora::notes() const { return state_->notes; }

LoraAdapter Lora::adapter(int layer) const {
  const auto found = state_->adapters.find(layer);
  if (found == state_->adapters.end()) return {};
  LoraAdapter adapter = found->second;
  Copies copies(state_->file.path());
  copies.take(adapter.routed);
  copies.take(adapter.shared);
  adapter.owner = copies.owner();
  return adapter;
}

}  // namespace sluice
