// SPDX-License-Identifier: Apache-2.0
// The command line as values: one struct a verb. Parsing fills them, a verb reads them, nothing else knows
// flags.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace sluice::tools {

/// What goes to stdout: a table for people or one JSON document.
enum class Form : std::uint8_t { text, json };

struct InspectOptions {
  std::string model;
  bool lint = false;
};

struct ExplainOptions {
  std::string model;
  std::optional<int> layer = {};
  std::string device = "auto";
  std::vector<int> tokens = {1, 16, 256};
  std::string backend = {};
  std::vector<std::string> calls = {};
};

struct RunOptions {
  std::string model;
  int layer = 0;
  std::string input;
  std::string output;
  std::string backend = {};
  std::vector<std::string> adapters = {};
  std::string cache = {};
};

struct CheckOptions {
  std::string model;
  std::optional<int> layer = {};
  std::string backend = "all";
  std::string expected = {};
  std::uint64_t seed = 0;
  std::string cache = {};
};

struct BenchOptions {
  std::string model = {};
  std::optional<int> layer = {};
  std::string shape = {};
  std::string format = "mxfp4";
  std::optional<int> group = {};
  std::vector<int> tokens = {1, 4, 16, 64, 256};
  std::string backend = {};
  std::string device = {};
  std::string from = "ids";
  std::string routing = "uniform";
  double seconds = 1;
  int threads = 0;
  std::string html = {};
  std::string cache = {};
};

struct SampleOptions {
  std::string family;
  std::string directory;
  std::uint64_t seed = 0;
};

using Command =
    std::variant<InspectOptions, ExplainOptions, RunOptions, CheckOptions, BenchOptions, SampleOptions>;

struct Arguments {
  Command command;
  Form form = Form::text;
};

/// What there is to do, or the exit code when help, the version or a usage error has been printed already.
std::variant<Arguments, int> parse_arguments(int argc, const char* const* argv);

}  // namespace sluice::tools
