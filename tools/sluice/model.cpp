// SPDX-License-Identifier: Apache-2.0
#include "model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "output.h"
#include "sluice/error.h"
#include "sluice/plan.h"

namespace sluice::tools {

namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

/// The folder that holds "models--org--name".
std::string cache_root() {
  if (const std::string cache = environment("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const std::string home = environment("HF_HOME"); !home.empty()) return home + "/hub";
  if (const std::string home = environment("HOME"); !home.empty()) return home + "/.cache/huggingface/hub";
  return {};
}

}  // namespace

Checkpoint open_model(const std::string& model) { return Checkpoint::open(model, cache_root()); }

std::vector<int> chosen_layers(const Checkpoint& model, std::optional<int> layer) {
  const std::vector<int>& layers = model.info().moe_layers;
  if (!layer) return layers;
  if (std::find(layers.begin(), layers.end(), *layer) != layers.end()) return {*layer};
  throw Error(ErrorKind::invalid_argument,
              {.code = "no_such_layer",
               .what = fmt::format("layer {} is not a mixture-of-experts layer of this model", *layer),
               .file = model.info().directory,
               .why = "those are " + layers_text(layers),
               .todo = "give one of them to --layer"});
}

void require_backend_name(const std::string& name) {
  if (name.empty()) return;
  std::vector<std::string> names;
  for (const BackendInfo& info : backends_info()) {
    if (info.name == name) return;
    names.push_back(info.name);
  }
  throw Error(ErrorKind::invalid_argument, {.code = "no_such_backend",
                                            .what = fmt::format("there is no backend named \"{}\"", name),
                                            .why = "this build knows " + listed(names),
                                            .todo = "give one of them to --backend"});
}

}  // namespace sluice::tools
