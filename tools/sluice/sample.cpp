// SPDX-License-Identifier: Apache-2.0
// sluice sample FAMILY OUT: a small checkpoint in a public layout.
#include "testing/sample.h"

#include <fmt/format.h>

#include "errors.h"
#include "json.h"
#include "output.h"
#include "verbs.h"

namespace sluice::tools {

int execute(const SampleOptions& options, Form form) {
  const testing::SampleFiles files = testing::write_sample(options.family, options.directory, options.seed);
  SampleResult result{.family = options.family,
                      .directory = options.directory,
                      .seed = options.seed,
                      .layers = files.layers,
                      .files = files.names,
                      .bytes = files.bytes};
  if (form == Form::json) {
    print(to_json(result));
    return kOk;
  }
  print(fmt::format("{}: {} with drawn weights (seed {}), {}, {} in {}\n", printable(result.directory),
                    result.family, result.seed, layers_text(result.layers), bytes_text(result.bytes),
                    listed(result.files)));
  const std::string& first = result.files.front();
  suggest("sluice inspect " + options.directory + (first.ends_with(".gguf") ? "/" + first : ""));
  return kOk;
}

}  // namespace sluice::tools
