// SPDX-License-Identifier: Apache-2.0
// What a backend is: a capability as data, a packing, and kernels that read it. This is all that the rest of
// the engine ever learns of a backend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "activation/activation.h"
#include "core/choice.h"
#include "core/devices.h"
#include "format/formats.h"
#include "sluice/device.h"
#include "sluice/device_call.h"
#include "sluice/executor.h"
#include "sluice/layer.h"
#include "sluice/lora.h"
#include "sluice/plan.h"
#include "sluice/spec.h"

namespace sluice {

/// What a layer may ask for beyond shape, format and activation. A feature that a backend has not declared is
/// refused, so a new one is refused by every backend that predates it.
// clang-format off
namespace feature {
struct GateUpBias { static constexpr std::string_view name = "gate_up_bias"; };
struct DownBias { static constexpr std::string_view name = "down_bias"; };
struct Limit { static constexpr std::string_view name = "limit"; };
struct Slope { static constexpr std::string_view name = "slope"; };
struct Shift { static constexpr std::string_view name = "shift"; };
struct Saturation { static constexpr std::string_view name = "saturation"; };
struct ExpertMap { static constexpr std::string_view name = "expert_map"; };
struct WeightOnInput { static constexpr std::string_view name = "weight_on_input"; };
struct SharedExpert { static constexpr std::string_view name = "shared_expert"; };
struct MixedFormats { static constexpr std::string_view name = "mixed_formats"; };  // down differs from up
struct MixedGateUp { static constexpr std::string_view name = "mixed_gate_up"; };   // gate differs from up
struct MixedExperts { static constexpr std::string_view name = "mixed_experts"; };  // experts differ
struct ZeroPoints { static constexpr std::string_view name = "zero_points"; };  // of integer formats
struct ActOrder { static constexpr std::string_view name = "act_order"; };      // of integer formats
struct Lora { static constexpr std::string_view name = "lora"; };
struct Latent { static constexpr std::string_view name = "latent"; };  // rows of another width than the layer's
}  // namespace feature
// clang-format on

using Feature = Name<struct FeatureTag>;
using FeatureSet = NameSet<struct FeatureTag>;
using Features =
    List<struct FeatureTag, feature::GateUpBias, feature::DownBias, feature::Limit, feature::Slope,
         feature::Shift, feature::Saturation, feature::ExpertMap, feature::WeightOnInput,
         feature::SharedExpert, feature::MixedFormats, feature::MixedGateUp, feature::MixedExperts,
         feature::ZeroPoints, feature::ActOrder, feature::Lora, feature::Latent>;

/// Local experts with equal formats, as a backend packs them: no backend sees a spec whose experts differ.
struct FormatGroup {
  ExpertsSpec spec;
  std::vector<std::int32_t> experts;  // their positions in the whole spec, ascending
};
/// All local experts of a spec, the group in `formats` first, then by lowest position. At least one group.
std::vector<FormatGroup> format_groups(const ExpertsSpec& spec);

/// What a set of experts asks for.
FeatureSet needs(const ExpertsSpec& spec);
/// What a whole layer asks for, its shared expert included.
FeatureSet needs(const LayerSpec& spec);

/// What calls may ask for (CallMode in plan.h).
// clang-format off
namespace call {
struct Contiguous { static constexpr std::string_view name = "contiguous"; };
struct Batched { static constexpr std::string_view name = "batched"; };
struct BatchInvariant { static constexpr std::string_view name = "batch_invariant"; };
struct Update { static constexpr std::string_view name = "update"; };
}  // namespace call
// clang-format on

using CallModes =
    List<struct CallModeTag, call::Contiguous, call::Batched, call::BatchInvariant, call::Update>;

/// What may separate results from the definition's, computed on the same numbers, beside the order of float32
/// sums. One that rounds more than float32 does is chosen by name alone (Backend::only_by_name).
// clang-format off
namespace accuracy {
struct Float32 { static constexpr std::string_view name = "float32"; };
struct Bf16Intermediate { static constexpr std::string_view name = "bf16_intermediate"; };  // rounded once
// Inputs and the intermediate, to 8 bits with a scale for every 32 neighbours (experts/cpu/common/int8.h).
struct Int8Activations { static constexpr std::string_view name = "int8_activations"; };
}  // namespace accuracy
// clang-format on

using Accuracy = Name<struct AccuracyTag>;
using Accuracies =
    List<struct AccuracyTag, accuracy::Float32, accuracy::Bf16Intermediate, accuracy::Int8Activations>;

/// Which groups of integer weights a backend accepts. A group as wide as the row may be stated either way: it
/// is what the spec says.
struct IntegerGroups {
  int multiple = 0;        // groups of multiples of this many columns; 0: no groups
  bool whole_row = false;  // a scale a row
};

/// What a backend accepts, as data. Everything is refused by default: a set left out is empty.
struct Capability {
  DeviceKind device;
  Instructions uses{};
  NameSet<struct FormatTag> weights{};
  NameSet<struct ActivationTag> activations{};
  FeatureSet features{};
  NameSet<struct CallModeTag> calls{};
  IntegerGroups integer_groups{};  // for those integer formats that `weights` has
  Accuracy accuracy = Accuracies::of<accuracy::Float32>();
  int hidden_multiple = 1;
  int intermediate_multiple = 1;
};

struct Backend;

/// Weights in one backend's layout. Each backend derives its own; `backend` tells whose it is.
class PackedExperts {
 public:
  PackedExperts(const Backend& packed_by, const ExpertsSpec& packed_spec)
      : backend(packed_by), spec(packed_spec) {}
  virtual ~PackedExperts() = default;
  virtual std::int64_t bytes() const = 0;

  const Backend& backend;
  const ExpertsSpec spec;
};

/// What packing reads. `experts` are the local ones, already validated against `spec`. `owner` keeps views
/// alive for a backend that reads them in place.
struct PackInput {
  const ExpertsSpec& spec;
  std::span<const ExpertWeights> experts;
  std::shared_ptr<const void> owner;
  Executor& executor;
  Progress progress;
  /// Called with the position of an expert that has been read to its end, from any thread. Of backends that
  /// can be kept (Keeping).
  std::function<void(std::int32_t)> read_one = {};
  int device = 0;  // which of its kind, as detect(DeviceKind) lists them
};

/// Packed weights in memory that came from elsewhere: 64-byte aligned, may be written, and is seen by nobody
/// else.
struct PackedBytes {
  std::shared_ptr<std::byte> data;
  std::size_t size = 0;
};

/// How a packing is kept in a file and mapped from there. The packing is one run of bytes an expert, all
/// equally long and multiples of 64, local expert after local expert.
struct Keeping {
  /// Of the layout. Raised whenever `pack` makes other bytes of the same weights. 0: is not kept.
  int version = 0;
  std::span<const std::byte> (*bytes)(const PackedExperts&) = nullptr;
  /// The packing whose bytes these are, for the input that they were packed from. Null when their number is
  /// not what pack would make. The bytes may be damaged, by accident or by intent: whatever they are, kernels
  /// stay within the memory they are given. Reads as little of them as that takes.
  std::unique_ptr<PackedExperts> (*adopt)(const PackInput&, PackedBytes) = nullptr;
};

/// One expert's weights to pack where those of local expert `local` are, already validated.
struct UpdateInput {
  std::int32_t local;
  const ExpertWeights& weights;
  std::shared_ptr<const void> owner;
  Executor& executor;
};

/// The adapters of a call. `experts` says which of their experts these are, routed or shared ones.
struct LoraCall {
  std::span<const LoraAdapter* const> adapters;
  std::span<const std::int32_t> ids;  // [tokens], -1 for none
  std::vector<LoraExpert> LoraAdapter::*experts = &LoraAdapter::routed;
  std::span<const std::int32_t> positions = {};  // [packed experts] where they are in `experts`; empty: there

  /// What `token`'s adapter adds to the packed expert `local`; null for no adapter, or one without deltas
  /// for these experts.
  const LoraExpert* delta(int token, std::int32_t local) const {
    const std::int32_t id = ids[static_cast<std::size_t>(token)];
    if (id < 0) return nullptr;
    const std::vector<LoraExpert>& deltas = adapters[static_cast<std::size_t>(id)]->*experts;
    if (deltas.empty()) return nullptr;  // it has nothing for these experts
    const std::int32_t at = positions.empty() ? local : positions[static_cast<std::size_t>(local)];
    return &deltas[static_cast<std::size_t>(at)];
  }
};

/// One call on packed weights. Everything has been validated. A kernel of the processor neither throws nor
/// allocates; one of a card throws device and out_of_memory.
struct Forward {
  RowsView input;                           // token t is row t, or row rows[t]
  Routing routing;                          // top_k is the spec's, or 1 where rows are with their experts;
                                            // global ids; -1 and out-of-range contribute nothing
  std::span<const std::int32_t> rows = {};  // [tokens] of input and output; empty: token t is row t
  std::span<const std::int32_t> output_rows = {};  // [tokens] of output, where they are others
  std::span<const std::int32_t> expert_map = {};   // [experts] -> local or -1; empty: identity
  float* output = nullptr;                         // like input; every element of the tokens' rows is written
  std::span<std::byte> workspace;  // at least workspace_bytes for these tokens, 64-byte aligned
  Executor* executor = nullptr;
  const LoraCall* lora = nullptr;  // null: no token has an adapter

  int row(int token) const { return rows.empty() ? token : rows[static_cast<std::size_t>(token)]; }
  int output_row(int token) const {
    return output_rows.empty() ? row(token) : output_rows[static_cast<std::size_t>(token)];
  }
};

/// A closed range of token counts.
struct TokenRange {
  int first = 1;
  int last = 1 << 30;
};

/// One way to run packed experts.
struct Kernel {
  std::string_view name;
  TokenRange tokens;
  /// Microseconds for `tokens` tokens, from the device's bandwidth and peak.
  double (*estimate_us)(const ExpertsSpec&, const DeviceFacts&, int tokens);
  /// Of `tokens` tokens with the spec's top_k each, or as many rows with one expert each as that are slots.
  std::size_t (*workspace_bytes)(const PackedExperts&, int tokens, int workers);
  void (*run)(const PackedExperts&, const Forward&);
};

/// What a layer has beside its experts, for a device to take a copy of. Spans are empty where it has none.
struct DeviceLayerInput {
  const LayerSpec& spec;
  int device;  // as of PackInput
  const PackedExperts& routed;
  const PackedExperts* shared;  // null: none
  std::span<const std::int32_t> expert_map;
  std::span<const float> router, router_bias, selection_bias, expert_scale, shared_gate;
  std::span<const std::int32_t> table;
};

/// Neighbouring rows of a call.
struct RowRange {
  int first, count;
};

/// A whole layer in one device's memory: calls whose pointers are there (device_call.h). Everything that the
/// host can see has been validated.
class DeviceLayer {
 public:
  virtual ~DeviceLayer() = default;
  /// Copies adapters, which have been validated, into the device's memory.
  virtual std::shared_ptr<const DeviceAdapters> put_adapters(
      std::span<const LoraAdapter* const> adapters) const = 0;
  /// Of one part with so many tokens, whatever their type. Grows with the tokens.
  virtual std::size_t workspace_bytes(int tokens) const = 0;
  /// Starts all of a call: routing, experts, shared experts.
  virtual void enqueue(const DeviceCall& call) const = 0;
  virtual std::size_t rows_workspace_bytes(int rows) const = 0;
  /// Starts the rows of a part. The call's pointers are those of all rows.
  virtual void enqueue_rows(const DeviceRows& call, RowRange part) const = 0;
};

/// A packing and the kernels that read it.
struct Backend {
  std::string_view name;
  Capability can;
  std::unique_ptr<PackedExperts> (*pack)(const PackInput&);
  /// Bytes that pack will allocate; asked before it is called.
  std::int64_t (*packed_bytes)(const ExpertsSpec&);
  std::span<const Kernel> (*kernels)();  // empty in a build that leaves them out
  bool only_by_name = false;             // the reference, and what rounds more: never a silent fallback
  /// Packs one expert anew where it is, with all that was derived from it, so that the packing is what `pack`
  /// would have made. Throws only before it changes anything. Of a backend that declares call::Update.
  void (*update)(PackedExperts&, const UpdateInput&) = nullptr;
  /// Of a backend whose packings can be kept, which then also declares `update`.
  Keeping keeping = {};
  /// Of a backend that takes calls in its device's memory, of layers with one packing of routed experts. What
  /// it copies is not updated, so that it does not declare call::Update.
  std::unique_ptr<DeviceLayer> (*on_device)(const DeviceLayerInput&) = nullptr;
};

/// Every backend of this build, in the order of the tree. Written by CMake (sluice_add_backend).
std::span<const Backend* const> backends();

}  // namespace sluice
