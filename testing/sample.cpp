// SPDX-License-Identifier: Apache-2.0
// Writes the files of a sample; what is in them is in sample_flavours.cpp.
#include "testing/sample.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "format/formats.h"
#include "testing/gguf_model.h"
#include "testing/safetensors_writer.h"
#include "testing/sample_flavours.h"

namespace sluice::testing {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kGgufFile = "model.gguf";
constexpr std::string_view kGgufNames[] = {"deepseek-gguf"};

const std::vector<std::string_view>& names() {
  static const std::vector<std::string_view> kNames = [] {
    std::vector<std::string_view> list;
    for (const sample::Flavour& flavour : sample::flavours()) list.push_back(flavour.name);
    return list;
  }();
  return kNames;
}

const sample::Flavour& flavour_of(std::string_view family) {
  for (const sample::Flavour& flavour : sample::flavours())
    if (flavour.name == family) return flavour;
  fail(ErrorKind::invalid_argument,
       {.code = "unknown_family",
        .what = fmt::format("there is no sample of a family called \"{}\"", family),
        .why = fmt::format("there are {}, {}", fmt::join(names(), ", "), fmt::join(kGgufNames, ", ")),
        .todo = "use one of these names"});
}

/// Collects what is written into the directory.
class Directory {
 public:
  explicit Directory(const std::string& path) : path_(path) {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    require(!error, ErrorKind::io, [&] {
      return ErrorInfo{.code = "create_directory",
                       .what = "cannot create the directory",
                       .file = path,
                       .why = error.message(),
                       .todo = "choose a place that may be written to"};
    });
    for (const char* name : {"config.json", kGgufFile})
      require(!std::filesystem::exists(path_ / name), ErrorKind::io, [&] {
        return ErrorInfo{.code = "not_empty",
                         .what = "the directory has a model in it already",
                         .file = path_ / name,
                         .why = "a sample must not overwrite a model",
                         .todo = "choose another directory or remove this one"};
      });
  }

  void write(const std::string& name, const Json& json) { write(name, json.dump(2) + "\n"); }

  void write(const std::string& name, const std::string& bytes) {
    std::ofstream file(path_ / name, std::ios::binary);
    file << bytes;
    file.close();
    require(!file.fail(), ErrorKind::io, [&] {
      return ErrorInfo{.code = "write_failed",
                       .what = "cannot write the file",
                       .file = path_ / name,
                       .todo = "check that the disk has room"};
    });
    note(name);
  }

  void write(const std::string& name, const std::vector<NamedTensor>& tensors) {
    write_safetensors(path_ / name, tensors, {.metadata = {{"format", "pt"}}});
    note(name);
  }

  SampleFiles written;

 private:
  void note(const std::string& name) {
    written.names.push_back(name);
    written.bytes += static_cast<std::int64_t>(std::filesystem::file_size(path_ / name));
  }

  const std::filesystem::path path_;
};

void write_shards(Directory& directory, const sample::Flavour& flavour, std::uint64_t seed) {
  Json map = Json::object();
  std::int64_t total = 0;
  const int layers = flavour.shape.layers;
  for (int layer = 0; layer < layers; ++layer) {
    sample::Shard shard{.draw = Draw(seed + static_cast<std::uint64_t>(layer) * 0x9e3779b9u)};
    flavour.add_layer(shard, flavour, layer);
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", layer + 1, layers);
    directory.write(name, shard.tensors);
    for (const NamedTensor& tensor : shard.tensors) {
      map[tensor.name] = name;
      total += static_cast<std::int64_t>(tensor.bytes.size());
    }
  }
  directory.write("model.safetensors.index.json",
                  Json{{"metadata", {{"total_size", total}}}, {"weight_map", map}});
}

void write_one_file(Directory& directory, const sample::Flavour& flavour, std::uint64_t seed) {
  sample::Shard shard{.draw = Draw(seed)};
  for (int layer = flavour.shape.first; layer < flavour.shape.layers; ++layer)
    flavour.add_layer(shard, flavour, layer);
  directory.write("model.safetensors", shard.tensors);
}

/// The first layer is a dense one, which is left out.
SampleFiles write_gguf_sample(const std::string& directory, std::uint64_t seed) {
  Directory out(directory);
  const std::vector<GgufLayer> layers = draw_deepseek_layers(seed);
  out.write(kGgufFile, write_deepseek_gguf(layers, 1).file());
  for (std::size_t i = 0; i < layers.size(); ++i) out.written.layers.push_back(static_cast<int>(i) + 1);
  return out.written;
}

}  // namespace

std::span<const std::string_view> sample_families() { return names(); }

std::span<const std::string_view> gguf_sample_families() { return kGgufNames; }

SampleFiles write_sample(std::string_view family, const std::string& directory, std::uint64_t seed) {
  if (family == kGgufNames[0]) return write_gguf_sample(directory, seed);
  const sample::Flavour& flavour = flavour_of(family);
  Directory out(directory);
  out.write("config.json", flavour.config(flavour));
  if (flavour.file_each_layer)
    write_shards(out, flavour, seed);
  else
    write_one_file(out, flavour, seed);
  for (int layer = flavour.shape.first; layer < flavour.shape.layers; ++layer)
    out.written.layers.push_back(layer);
  return out.written;
}

double bits_a_weight(const ExpertsSpec& spec) {
  const std::int64_t matrices = spec.formats.gate ? 3 : 2;
  const std::int64_t weights = matrices * spec.hidden * spec.intermediate;
  return 8.0 * static_cast<double>(experts_bytes(spec, 1)) / static_cast<double>(weights);
}

}  // namespace sluice::testing
