// SPDX-License-Identifier: Apache-2.0
#include "testing/gguf_writer.h"

#include <algorithm>
#include <stdexcept>

namespace sluice::testing {
namespace {

constexpr std::uint32_t kU32 = 4, kF32 = 6, kFlag = 7, kText = 8, kArray = 9;

std::uint64_t padding(std::uint64_t size, std::uint64_t alignment) {
  return (alignment - size % alignment) % alignment;
}

}  // namespace

std::string GgufWriter::text(std::string_view value) {
  return raw(std::uint64_t{value.size()}) + std::string(value);
}

void GgufWriter::add(std::string_view key, std::string value) {
  keys_.push_back({std::string(key), std::move(value)});
}

void GgufWriter::add_u32(std::string_view key, std::uint32_t value) { add(key, raw(kU32) + raw(value)); }
void GgufWriter::add_f32(std::string_view key, float value) { add(key, raw(kF32) + raw(value)); }
void GgufWriter::add_flag(std::string_view key, bool value) {
  add(key, raw(kFlag) + std::string(1, value ? 1 : 0));
}
void GgufWriter::add_text(std::string_view key, std::string_view value) {
  add(key, raw(kText) + text(value));
}

void GgufWriter::add_floats(std::string_view key, const std::vector<float>& values) {
  std::string all = raw(kArray) + raw(kF32) + raw(std::uint64_t{values.size()});
  for (const float value : values) all += raw(value);
  add(key, std::move(all));
}

void GgufWriter::remove(std::string_view key) {
  if (std::erase_if(keys_, [&](const Key& one) { return one.name == key; }) == 0)
    throw std::logic_error("no key " + std::string(key));
}

GgufWriter::Tensor& GgufWriter::tensor(std::string_view name) {
  for (Tensor& one : tensors)
    if (one.name == name) return one;
  throw std::logic_error("no tensor " + std::string(name));
}

std::string GgufWriter::file() const {
  std::string head = magic + raw(version) + raw(std::uint64_t{tensors.size()} + more_tensors) +
                     raw(std::uint64_t{keys_.size()} + more_keys);
  for (const Key& key : keys_) head += text(key.name) + key.value;
  std::string data;
  for (const Tensor& one : tensors) {
    data.append(padding(data.size(), alignment), '\0');
    const std::uint64_t offset = one.offset == kFollows ? data.size() : one.offset;
    head += text(one.name) + raw(static_cast<std::uint32_t>(one.ne.size()));
    for (const std::uint64_t size : one.ne) head += raw(size);
    head += raw(one.type) + raw(offset);
    data += one.bytes;
  }
  head.append(padding(head.size(), alignment), '\0');
  return head + data;
}

}  // namespace sluice::testing
