// SPDX-License-Identifier: Apache-2.0
// Checkpoints as published: of Hugging Face, which are safetensors in one file or in shards with an index and
// a config.json, and of llama.cpp, which are GGUF in one file or several. Nothing here touches a network,
// runs code of a model, or allocates by a number that a file claims before that number was checked against
// the file's size.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/error.h"
#include "sluice/spec.h"
#include "sluice/tensor.h"

namespace sluice {

/// One safetensors file, mapped. Format: https://github.com/huggingface/safetensors (README, "Format").
/// Strict: a header that overlaps, leaves gaps, repeats a key or disagrees with the file's size is refused
/// (corrupt_file).
class TensorFile {
 public:
  static TensorFile open(const std::string& path);

  const std::string& path() const;
  /// Names in order of their offsets.
  const std::vector<std::string>& names() const;
  bool has(std::string_view name) const;
  /// Throws corrupt_file naming the file and the nearest names when there is none.
  const TensorView& at(std::string_view name) const;
  const std::map<std::string, std::string>& metadata() const;
  /// Keeps the mapping alive.
  std::shared_ptr<const void> owner() const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

/// What `sluice inspect` prints about a whole model.
struct ModelInfo {
  std::string directory;     // or the .gguf file
  std::string family;        // "gpt_oss", "deepseek_v4", ...
  std::string architecture;  // as config.json says
  std::string quantisation;  // scheme in words: "mxfp4", "compressed-tensors nvfp4-pack-quantized", "none"
  int layers = 0;            // of the whole model
  std::vector<int> moe_layers;
  int files = 0;
  std::int64_t file_bytes = 0;
  std::int64_t tensors = 0;
  std::vector<std::string> notes;  // anything odd, a sentence each
};

struct TensorPlace {
  std::string file, tensor;
};

class Checkpoint {
 public:
  /// `model` is a directory, a .gguf file (any part of a split one), or a name like
  /// "openai/gpt-oss-20b[@revision]" that is looked up in the local Hugging Face cache below `cache_root`
  /// (the caller resolves HF_HOME; empty means names are not accepted). Reads and checks every header and the
  /// configuration: corrupt_file, unsupported or io.
  static Checkpoint open(const std::string& model, const std::string& cache_root = {});

  const ModelInfo& info() const;
  /// The spec of MoE layer `layer` (its number in the model). invalid_argument when there is none of that
  /// number.
  LayerSpec spec(int layer) const;
  /// Canonical views of that layer's weights, every scale checked (corrupt_file for zero, NaN, infinite, and,
  /// but for integers, negative).
  LayerWeights weights(int layer) const;
  /// The same, but scales are checked when a Layer packs them (LayerWeights::check): not at all where it maps
  /// what was packed from these files before, when they were. Reads headers and single numbers only.
  LayerWeights weights_to_pack(int layer) const;
  /// The same for whoever looks at values himself (lint): scales are not checked, and whatever else weights()
  /// refuses for its value is added to `faults`. Nothing may be computed with these.
  LayerWeights unchecked_weights(int layer, std::vector<ErrorInfo>& faults) const;
  /// Where the byte at `address`, of a view of this model, comes from. Empty when it is in no tensor as it
  /// stands in a file.
  TensorPlace place(const std::byte* address) const;
  /// Bytes of the layer's tensors in the files.
  std::int64_t layer_bytes(int layer) const;

 private:
  struct State;
  static std::shared_ptr<State> open_gguf(const std::string& path);
  std::shared_ptr<const State> state_;
};

}  // namespace sluice
