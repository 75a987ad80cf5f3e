// SPDX-License-Identifier: Apache-2.0
#include "testing/safetensors_writer.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/error.h"

namespace sluice::testing {

namespace {

void check(const NamedTensor& tensor) {
  const TensorView view{tensor.bytes.data(), tensor.dtype, tensor.shape};
  require(view.bytes() == tensor.bytes.size(), ErrorKind::invalid_argument, [&] {
    return ErrorInfo{.code = "tensor_size",
                     .what = "a tensor to be written has the wrong number of bytes",
                     .tensor = tensor.name,
                     .why = std::to_string(tensor.bytes.size()) + " bytes for " +
                            std::string(name(tensor.dtype)) + " " + view.shape_text()};
  });
}

/// The order in which tensors lie in the file, as indices.
std::vector<std::size_t> file_order(std::span<const NamedTensor> tensors, TensorOrder order) {
  std::vector<std::size_t> indices(tensors.size());
  std::iota(indices.begin(), indices.end(), std::size_t{0});
  std::stable_sort(indices.begin(), indices.end(), [&](std::size_t a, std::size_t b) {
    if (order == TensorOrder::as_given) return false;
    const int width_a = bits(tensors[a].dtype), width_b = bits(tensors[b].dtype);
    if (order == TensorOrder::by_width && width_a != width_b) return width_a > width_b;
    return tensors[a].name < tensors[b].name;
  });
  return indices;
}

std::string header_of(std::span<const NamedTensor> tensors, const std::vector<std::size_t>& order,
                      const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t begin = 0;
  for (std::size_t index : order) {
    const NamedTensor& tensor = tensors[index];
    check(tensor);
    require(!header.contains(tensor.name), ErrorKind::invalid_argument, [&] {
      return ErrorInfo{.code = "duplicate_tensor",
                       .what = "two tensors of one file have the same name",
                       .tensor = tensor.name};
    });
    const std::uint64_t end = begin + tensor.bytes.size();
    header[tensor.name] = {
        {"dtype", name(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {begin, end}}};
    begin = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

[[noreturn]] void fail_io(const std::string& path, const char* doing) {
  fail(ErrorKind::io, ErrorInfo{.code = "write_failed",
                                .what = std::string("cannot ") + doing,
                                .file = path,
                                .why = std::strerror(errno),
                                .todo = "check that the folder exists, may be written to and has room"});
}

void write_and_rename(const std::string& contents, const std::string& temporary, const std::string& path) {
  std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
  if (!file) fail_io(path, "create the file");
  file.write(contents.data(), static_cast<std::streamsize>(contents.size()));
  file.close();
  if (!file) fail_io(path, "write the file");
  if (std::rename(temporary.c_str(), path.c_str()) != 0) fail_io(path, "rename the finished file into place");
}

}  // namespace

std::string safetensors_file(std::span<const NamedTensor> tensors, const WriteOptions& options) {
  static_assert(std::endian::native == std::endian::little, "safetensors is little-endian");
  const std::vector<std::size_t> order = file_order(tensors, options.order);
  const std::string header = header_of(tensors, order, options.metadata);
  const std::uint64_t length = header.size();
  std::string file(sizeof length, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  file += header;
  for (std::size_t index : order)
    file.append(reinterpret_cast<const char*>(tensors[index].bytes.data()), tensors[index].bytes.size());
  return file;
}

void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                       const WriteOptions& options) {
  const std::string contents = safetensors_file(tensors, options);
  // Renaming would put a file in the place of a link, a pipe or a device.
  const std::filesystem::file_status there = std::filesystem::symlink_status(path);
  require(!exists(there) || is_regular_file(there), ErrorKind::io, [&] {
    return ErrorInfo{.code = "write_failed",
                     .what = "the output is there already and is no plain file",
                     .file = path,
                     .why = "it would be replaced",
                     .todo = "give the path of a new file"};
  });
  const std::string temporary = path + ".part" + std::to_string(getpid());
  try {
    write_and_rename(contents, temporary, path);
  } catch (...) {
    std::remove(temporary.c_str());
    throw;
  }
}

}  // namespace sluice::testing
