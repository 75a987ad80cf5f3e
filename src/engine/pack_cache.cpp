// SPDX-License-Identifier: Apache-2.0
// Packings from a cache and into it. Whatever goes wrong here goes into the report: a layer that can be
// packed is.
#include <fmt/format.h>

#include <new>
#include <utility>

#include "core/error.h"
#include "engine/identity.h"
#include "engine/packed_file.h"
#include "engine/packed_layer.h"
#include "oracle/oracle.h"

namespace sluice {

CachePlace cache_place(const std::string& directory, const Backend& backend, const PackInput& input,
                       std::span<const SourceFile> files) {
  if (directory.empty() || backend.keeping.version == 0) return {};
  Identity identity = identity_of(backend, input, files);
  return {.path = directory + "/" + identity.name, .identity = std::move(identity.text)};
}

/// Null where there is none that can be used.
std::unique_ptr<PackedExperts> PackedLayer::from_cache(const PackInput& input, const CachePlace& at,
                                                       CacheCheck when) {
  if (at.path.empty()) return nullptr;
  const Backend& backend = *find_backend(plan_.chosen, backends());
  const auto refused = [&](std::string_view why) {
    log_.add({.notes = {fmt::format("{} {}; it is written anew", at.path, why)}});
    return nullptr;
  };
  FoundFile found = open_packed(at.path, at.identity, input.experts.size());
  if (!found.file) return found.why.empty() ? nullptr : refused(found.why);
  const PackedRuns runs = found.file->runs;
  std::unique_ptr<PackedExperts> packed =
      backend.keeping.adopt(input, {found.file->body, runs.count * runs.bytes});
  if (!packed) return refused("is damaged (it holds another number of bytes than are packed)");
  auto touch = std::make_unique<FirstTouch>(
      *packed, *std::move(found.file), at.path,
      FirstTouch::Source{{input.experts.begin(), input.experts.end()}, input.owner}, log_);
  // Without an owner the weights may be gone when damage is found.
  if ((when == CacheCheck::at_load || !input.owner) && !touch->all_whole(*executor_))
    return refused("is damaged (a checksum is wrong)");
  first_touches_.push_back(std::move(touch));
  log_.add({.loaded = 1});
  return packed;
}

void PackedLayer::to_cache(const PackedExperts& packed, const CachePlace& at) {
  if (at.path.empty()) return;
  const std::string why =
      write_packed(at.path, at.identity, static_cast<std::size_t>(packed.spec.local_experts),
                   packed.backend.keeping.bytes(packed), *executor_);
  if (why.empty())
    log_.add({.written = 1});
  else
    log_.add({.notes = {fmt::format("{} {}; the layer works without", at.path, why)}});
}

}  // namespace sluice
