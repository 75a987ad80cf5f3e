// SPDX-License-Identifier: Apache-2.0
#include "editable_model.h"

#include <stdlib.h>

#include <fstream>
#include <sstream>
#include <stdexcept>

#include "sluice/checkpoint.h"
#include "testing/sample.h"

namespace sluice::testing {

namespace fs = std::filesystem;

TemporaryDirectory::TemporaryDirectory() {
  std::string name = (fs::temp_directory_path() / "sluice-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary directory");
  path_ = fs::canonical(name);
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void write_file(const fs::path& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file.flush()) throw std::runtime_error("cannot write " + path.string());
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

EditableModel EditableModel::of(std::string_view fixture) {
  return read(fs::path(SLUICE_SOURCE_DIR) / "tests/data/fixtures" / fixture);
}

EditableModel EditableModel::of_sample(std::string_view family) {
  const TemporaryDirectory directory;
  write_sample(family, directory.path().string(), 1);
  return read(directory.path());
}

EditableModel EditableModel::read(const fs::path& directory) {
  EditableModel model{.config = read_file(directory / "config.json"), .index = {}, .files = {}};
  const fs::path index = directory / "model.safetensors.index.json";
  if (fs::exists(index)) model.index = read_file(index);
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("model") || !name.ends_with(".safetensors")) continue;
    const TensorFile file = TensorFile::open(entry.path().string());
    for (const std::string& tensor : file.names()) {
      const TensorView& view = file.at(tensor);
      model.files[name].push_back({tensor, view.dtype, view.shape, {view.data, view.data + view.bytes()}});
    }
  }
  return model;
}

void EditableModel::write(const fs::path& directory) const {
  fs::create_directories(directory);
  write_file(directory / "config.json", config);
  if (!index.empty()) write_file(directory / "model.safetensors.index.json", index);
  for (const auto& [name, tensors] : files) write_file(directory / name, safetensors_file(tensors));
  if (finally) finally(directory);
}

void EditableModel::replace(std::string& text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  if (at == text.npos) throw std::logic_error("nothing to replace: " + std::string(from));
  text.replace(at, from.size(), to);
}

NamedTensor& EditableModel::tensor(std::string_view name) {
  for (auto& [file, tensors] : files)
    for (NamedTensor& tensor : tensors)
      if (tensor.name == name) return tensor;
  throw std::logic_error("no such tensor: " + std::string(name));
}

void EditableModel::remove(std::string_view name) {
  tensor(name);
  for (auto& [file, tensors] : files)
    std::erase_if(tensors, [&](const NamedTensor& tensor) { return tensor.name == name; });
}

void EditableModel::remove_below(std::string_view prefix) {
  std::size_t removed = 0;
  for (auto& [file, tensors] : files)
    removed +=
        std::erase_if(tensors, [&](const NamedTensor& tensor) { return tensor.name.starts_with(prefix); });
  if (removed == 0) throw std::logic_error("nothing below " + std::string(prefix));
}

void EditableModel::add(NamedTensor tensor) { files.begin()->second.push_back(std::move(tensor)); }

}  // namespace sluice::testing
