// SPDX-License-Identifier: Apache-2.0
// What backends declare, as text.
#include "oracle/oracle.h"

namespace sluice {
namespace {

template <class Tag>
std::vector<std::string> texts(NameSet<Tag> set) {
  std::vector<std::string> texts;
  set.each([&](Name<Tag> name) { texts.emplace_back(name.str()); });
  return texts;
}

}  // namespace

std::vector<BackendInfo> backends_info() {
  std::vector<BackendInfo> infos;
  for (const Backend* backend : backends()) {
    const Capability& can = backend->can;
    infos.push_back({.name = std::string(backend->name),
                     .device = std::string(can.device.str()),
                     .instructions = texts(can.uses),
                     .formats = texts(can.weights),
                     .activations = texts(can.activations),
                     .features = texts(can.features),
                     .calls = texts(can.calls),
                     .accuracy = std::string(can.accuracy.str()),
                     .integer_groups = words(can.integer_groups),
                     .only_by_name = backend->only_by_name,
                     .built = !backend->kernels().empty()});
  }
  return infos;
}

}  // namespace sluice
