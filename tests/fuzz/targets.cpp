// SPDX-License-Identifier: Apache-2.0
#include "targets.h"

#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/header.h"
#include "format/geometry.h"
#include "sluice/checkpoint.h"
#include "sluice/error.h"
#include "sluice/spec.h"
#include "tiny_models.h"

namespace sluice::fuzz {
namespace {

namespace fs = std::filesystem;

void promise(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

/// Removes the file first: file systems flush one that is cut to nothing and written again, which takes
/// milliseconds.
void write(const fs::path& path, std::string_view text) {
  fs::remove(path);
  std::ofstream(path, std::ios::binary).write(text.data(), static_cast<std::streamsize>(text.size()));
}

/// Reads every byte that a view promises, so that a sanitizer sees a view that lies.
unsigned touch(const TensorView& view) {
  unsigned sum = 0;
  for (std::size_t i = 0; i < view.bytes(); ++i) sum += static_cast<unsigned>(view.data[i]);
  return sum;
}

/// A directory with the tiny models, made once.
class ModelDirectory {
 public:
  ModelDirectory() {
    std::string name = (fs::temp_directory_path() / "sluice-fuzz-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary directory");
    path_ = name;
    for (const TinyModel& model : tiny_models()) {
      const std::string file = model.model_type + ".safetensors";
      testing::write_safetensors((path_ / file).string(), model.tensors);
      std::string index = "{\"weight_map\": {";
      for (const auto& tensor : model.tensors)
        index += (index.back() == '{' ? "\"" : ", \"") + tensor.name + "\": \"" + file + "\"";
      indices_.emplace_back(model.model_type, index + "}}");
    }
  }
  ModelDirectory(const ModelDirectory&) = delete;
  ModelDirectory& operator=(const ModelDirectory&) = delete;
  ~ModelDirectory() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }

  /// Writes the three texts and returns the directory.
  std::string holding(std::string_view config, std::string_view index, std::string_view quantisation) const {
    write(path_ / "config.json", config);
    write(path_ / "model.safetensors.index.json", index.empty() ? index_for(config) : index);
    if (quantisation.empty())
      fs::remove(path_ / "hf_quant_config.json");
    else
      write(path_ / "hf_quant_config.json", quantisation);
    return path_.string();
  }

 private:
  std::string_view index_for(std::string_view config) const {
    for (const auto& [type, index] : indices_)
      if (config.find(type) != config.npos) return index;
    return indices_.front().second;
  }

  fs::path path_;
  std::vector<std::pair<std::string, std::string>> indices_;
};

/// A directory of its own, gone at the end.
class ScratchDirectory {
 public:
  ScratchDirectory() {
    std::string name = (fs::temp_directory_path() / "sluice-fuzz-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary directory");
    path_ = name;
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  ~ScratchDirectory() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  std::string file(const char* name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

void read_rows(const WeightMatrix& matrix) {
  std::vector<float> row(static_cast<std::size_t>(matrix.cols));
  for (const std::int64_t r : {std::int64_t{0}, matrix.rows - 1}) decode_row(matrix, r, row.data());
}

/// What an opened checkpoint promises of each of its layers. Taking the weights may still refuse values.
void take(const Checkpoint& model) {
  for (const int layer : model.info().moe_layers) {
    LayerWeights weights;
    try {
      weights = model.weights(layer);
    } catch (const Error& error) {
      promise(error.kind() == ErrorKind::corrupt_file, "only values may be refused late");
      continue;
    }
    try {
      validate(model.spec(layer), weights);
    } catch (const Error& error) {
      throw std::logic_error(std::string("an opened checkpoint has an invalid layer: ") + error.what());
    }
    for (const ExpertWeights& expert : weights.routed) {
      if (expert.gate) read_rows(*expert.gate);
      read_rows(expert.up);
      read_rows(expert.down);
    }
  }
}

std::string_view cut(std::string_view& rest) {
  const std::size_t at = rest.find('\0');
  const std::string_view first = rest.substr(0, at);
  rest = at == rest.npos ? std::string_view() : rest.substr(at + 1);
  return first;
}

}  // namespace

bool safetensors(std::span<const std::byte> file) {
  // A copy of exactly these bytes, so that a sanitizer sees a read past them.
  const auto copy = std::make_unique<std::byte[]>(file.size());
  std::copy(file.begin(), file.end(), copy.get());
  try {
    const auto header = checkpoint::parse_header({copy.get(), file.size()}, "fuzz.safetensors");
    promise(header.names.size() == header.tensors.size(), "a name for each tensor");
    std::size_t bytes = 0;
    volatile unsigned sum = 0;
    for (const TensorView& tensor : header.tensors) {
      bytes += tensor.bytes();
      sum = sum + touch(tensor);
    }
    promise(bytes + 8 <= file.size(), "tensors do not share bytes");
    return true;
  } catch (const Error& error) {
    promise(error.kind() == ErrorKind::corrupt_file, "bytes are refused as corrupt");
    return false;
  }
}

bool configuration(std::span<const std::byte> text) {
  static const ModelDirectory directory;
  std::string_view rest(reinterpret_cast<const char*>(text.data()), text.size());
  const std::string_view config = cut(rest), index = cut(rest), quantisation = rest;
  try {
    take(Checkpoint::open(directory.holding(config, index, quantisation)));
    return true;
  } catch (const Error& error) {
    promise(error.kind() != ErrorKind::invalid_argument, "a file's mistake is not the caller's");
    return false;
  }
}

bool gguf(std::span<const std::byte> file) {
  static const ScratchDirectory directory;
  const std::string path = directory.file("fuzz.gguf");
  write(path, {reinterpret_cast<const char*>(file.data()), file.size()});
  try {
    take(Checkpoint::open(path));
    return true;
  } catch (const Error& error) {
    promise(error.kind() != ErrorKind::invalid_argument, "a file's mistake is not the caller's");
    return false;
  }
}

}  // namespace sluice::fuzz
