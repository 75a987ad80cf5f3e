// SPDX-License-Identifier: Apache-2.0
// The only file that includes CLI11, which takes 9 s to compile.
#include "arguments.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string_view>

#include "errors.h"
#include "output.h"
#include "testing/sample.h"
#include "testing/synthetic.h"

namespace sluice::tools {

namespace {

constexpr const char* kAbout =
    "Examples:\n"
    "  sluice inspect models/tiny-gpt-oss-mxfp4\n"
    "  sluice explain models/tiny-gpt-oss-mxfp4 --device h100 --tokens 1,16,256\n"
    "  sluice check models/tiny-gpt-oss-mxfp4 --expected models/tiny-gpt-oss-mxfp4/expected.safetensors\n"
    "\n"
    "Reads, explains, runs, checks and measures the mixture-of-experts layers of published checkpoints.\n"
    "MODEL is a directory with config.json and safetensors files, a .gguf file, or a name such as\n"
    "openai/gpt-oss-20b in the local Hugging Face cache. Nothing touches a network.";

constexpr const char* kExitCodes =
    "Exit codes: 0 ok, 1 internal error, 2 usage, 3 refused file, 4 unsupported, 5 does not fit,\n"
    "6 check failed, 7 device, 8 input or output.";

constexpr int kMostTokens = 1 << 20;
constexpr int kMostThreads = 4096;
constexpr int kMostLayers = 9999;
constexpr int kMostGroup = 1 << 20;
constexpr double kMostSeconds = 3600;

/// Fills one value for each verb; `chosen` says which to take.
struct Parsed {
  InspectOptions inspect;
  ExplainOptions explain;
  RunOptions run;
  CheckOptions check;
  BenchOptions bench;
  SampleOptions sample;
  Form form = Form::text;
};

/// What a verb says about itself: a line in the list of verbs, examples and more in its own help.
struct About {
  const char* name;
  const char* line;
  const char* help;
};

constexpr About kInspect{
    "inspect", "What a checkpoint holds, and whether anything about it is odd or damaged",
    "Examples:\n"
    "  sluice inspect models/tiny-gpt-oss-mxfp4\n"
    "  sluice inspect openai/gpt-oss-20b\n"
    "  sluice inspect models/tiny-gpt-oss-mxfp4 --json\n"
    "  sluice inspect models/tiny-gpt-oss-mxfp4 --lint\n"
    "\n"
    "Family, layers, experts, routers, activations with their limits, formats, bytes, "
    "and anything odd. Reads every\n"
    "header and every scale, so a damaged file is refused (exit code 3). With --lint, reads every weight too "
    "and\n"
    "lists all that is wrong (exit code 3), suspicious, or worth knowing to whoever quantised it."};

constexpr About kExplain{"explain",
                         "Which backend would run each layer on a device, and why the others would not",
                         "Examples:\n"
                         "  sluice explain models/tiny-gpt-oss-mxfp4\n"
                         "  sluice explain models/tiny-gpt-oss-mxfp4 --device h100 --tokens 1,256\n"
                         "  sluice explain models/tiny-gpt-oss-mxfp4 --layer 0 --backend reference\n"
                         "\n"
                         "The plan of each layer: the backend that would run it, what that would cost, and "
                         "every reason of every other\n"
                         "backend. The device need not be here. Exit code 4 when nothing fits."};

constexpr About kRun{
    "run", "Runs one layer on the tensors of a file",
    "Examples:\n"
    "  sluice run MODEL --layer 0 --input in.safetensors --output out.safetensors\n"
    "  sluice run MODEL --layer 0 --input MODEL/expected.safetensors --output out.safetensors\n"
    "  sluice run MODEL --layer 0 --input in.safetensors --output out.safetensors --backend reference\n"
    "  sluice run MODEL --layer 0 --input in.safetensors --output out.safetensors --lora DIR --lora DIR2\n"
    "\n"
    "IN holds `hidden` [tokens, hidden] (BF16, F16 or F32) and, if wanted, `input_ids`, `router_logits`, or "
    "`topk_ids`\n"
    "with `topk_weights`. A file of expected outputs serves as well: `N.hidden` and `N.input_ids` of layer N "
    "are read.\n"
    "With --lora, `adapter_ids` [tokens] names each token's adapter, 0 for the first and -1 for none; "
    "without it\n"
    "every token takes the first.\n"
    "OUT holds topk_ids, topk_weights, experts_out (the routed part) and block_out (with shared experts)."};

constexpr About kCheck{
    "check", "Compares backends with the definition and with expected outputs",
    "Examples:\n"
    "  sluice check models/tiny-gpt-oss-mxfp4\n"
    "  sluice check models/tiny-gpt-oss-mxfp4 --expected models/tiny-gpt-oss-mxfp4/expected.safetensors\n"
    "  sluice check models/tiny-gpt-oss-mxfp4 --layer 3 --backend cpu.avx2\n"
    "\n"
    "Runs backends on this machine and compares them with the definition in double precision, and with "
    "expected outputs\n"
    "where given. Says how often the clamp fires and what dropping it would change. Exit code 6 when a "
    "comparison fails."};

constexpr About kBench{"bench", "Times a layer, and says what share of this machine's roof it reaches",
                       "Examples:\n"
                       "  sluice bench --shape gpt-oss-20b --format mxfp4 --tokens 1,16\n"
                       "  sluice bench --shape deepseek-v4-flash --format nvfp4\n"
                       "  sluice bench models/tiny-gpt-oss-mxfp4 --layer 0 --threads 1\n"
                       "  sluice bench --shape gpt-oss-20b --format mxfp4 --html bench.html\n"
                       "  sluice bench --shape gpt-oss-120b --format mxfp4 --device cuda --from logits\n"
                       "\n"
                       "Times the routed experts of a layer of MODEL, or of a published shape with drawn "
                       "weights: median and spread, cold\n"
                       "weights, and the share of what memory and arithmetic allowed in the same seconds. On "
                       "a card all of the layer is\n"
                       "timed, replayed from a CUDA graph."};

constexpr About kSample{
    "sample", "Writes a small checkpoint in a public layout, for trying things out",
    "Examples:\n"
    "  sluice sample gpt-oss /tmp/sample\n"
    "  sluice sample deepseek-v4-nvfp4 /tmp/sample --seed 1\n"
    "  sluice check /tmp/sample\n"
    "\n"
    "Weights are drawn; the seed decides every byte. The clamp fires where the family has one."};

CLI::App* add_verb(CLI::App& app, const About& about) {
  CLI::App* verb = app.add_subcommand(about.name, about.line);
  verb->fallthrough();
  return verb;
}

/// The help of the verb that was named, which has its examples where the list has its line; or of the whole.
std::string help_of(CLI::App& app) {
  for (CLI::App* verb : app.get_subcommands())
    for (const About& about : {kInspect, kExplain, kRun, kCheck, kBench, kSample})
      if (verb->get_name() == about.name) verb->description(about.help);
  return app.help();
}

CLI::Option* add_model(CLI::App* verb, std::string& model) {
  return verb->add_option("MODEL", model, "Directory, .gguf file, or a name in the Hugging Face cache")
      ->type_name("");
}

/// CLI11 would take -1 for the largest seed.
std::string not_negative(const std::string& text) {
  return text.starts_with('-') ? "must not be negative" : "";
}

/// An empty variable of a shell would be no cache without a word.
std::string not_empty(const std::string& text) { return text.empty() ? "must not be empty" : ""; }

CLI::Option* add_layer(CLI::App* verb, std::optional<int>& layer, const char* description) {
  return verb->add_option("--layer", layer, description)->check(CLI::Range(0, kMostLayers))->type_name("N");
}

void add_tokens(CLI::App* verb, std::vector<int>& tokens) {
  verb->add_option("--tokens", tokens, "Token counts, separated by commas")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1, kMostTokens))
      ->type_name("N,...")
      ->capture_default_str();
}

void add_backend(CLI::App* verb, std::string& backend, const char* description) {
  verb->add_option("--backend", backend, description)->type_name("NAME");
}

void add_cache(CLI::App* verb, std::string& cache) {
  verb->add_option("--cache", cache,
                   "Directory for packed weights: the next start maps them instead of packing")
      ->check(not_empty)
      ->type_name("DIR");
}

void add_inspect(CLI::App& app, InspectOptions& options) {
  CLI::App* verb = add_verb(app, kInspect);
  add_model(verb, options.model)->required();
  verb->add_flag("--lint", options.lint, "Look at every value instead, and list what is wrong or odd");
}

void add_explain(CLI::App& app, ExplainOptions& options) {
  CLI::App* verb = add_verb(app, kExplain);
  add_model(verb, options.model)->required();
  add_layer(verb, options.layer, "One layer (default: all)");
  verb->add_option("--device", options.device,
                   "auto, cpu, cpu.avx2, cpu.avx512, cpu.avx512_bf16, cpu.amx, cuda (the first card here), "
                   "a compute capability (sm80, sm90, ...) or a card (a100, h100, ...)")
      ->type_name("NAME")
      ->capture_default_str();
  add_tokens(verb, options.tokens);
  add_backend(verb, options.backend, "Only this backend");
  verb->add_option(
          "--calls", options.calls,
          "What calls will ask for besides tokens with their routing, separated by commas: contiguous, "
          "batched, batch_invariant, update")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("MODE,...");
}

void add_run(CLI::App& app, RunOptions& options) {
  CLI::App* verb = add_verb(app, kRun);
  add_model(verb, options.model)->required();
  verb->add_option("--layer", options.layer, "The layer to run")
      ->required()
      ->check(CLI::Range(0, kMostLayers))
      ->type_name("N");
  verb->add_option("--input", options.input, "Safetensors file to read")->required()->type_name("IN");
  verb->add_option("--output", options.output, "Safetensors file to write")->required()->type_name("OUT");
  verb->add_option("--lora", options.adapters, "A PEFT adapter (repeatable); tokens choose by `adapter_ids`")
      ->allow_extra_args(false)
      ->type_name("DIR");
  add_backend(verb, options.backend, "Only this backend (default: the plan's choice)");
  add_cache(verb, options.cache);
}

void add_check(CLI::App& app, CheckOptions& options) {
  CLI::App* verb = add_verb(app, kCheck);
  add_model(verb, options.model)->required();
  add_layer(verb, options.layer, "One layer (default: all, or those that FILE has)");
  verb->add_option("--backend", options.backend, "A backend, or all that fit this machine")
      ->type_name("NAME")
      ->capture_default_str();
  verb->add_option("--expected", options.expected,
                   "Inputs and expected outputs, tensors named N.hidden, N.block_out, ...")
      ->type_name("FILE");
  verb->add_option("--seed", options.seed, "Of the random inputs that are used without FILE")
      ->check(not_negative)
      ->type_name("N")
      ->capture_default_str();
  add_cache(verb, options.cache);
}

void add_bench(CLI::App& app, BenchOptions& options) {
  CLI::App* verb = add_verb(app, kBench);
  std::vector<std::string> shapes;
  for (std::string_view shape : testing::public_shapes()) shapes.emplace_back(shape);
  CLI::Option* model = add_model(verb, options.model);
  add_layer(verb, options.layer, "The layer of MODEL (default: the first)")->needs(model);
  verb->add_option("--shape", options.shape, "A published layer shape: " + listed(shapes))
      ->excludes(model)
      ->type_name("NAME");
  verb->add_option("--format", options.format, "Weight format for --shape")
      ->excludes(model)
      ->type_name("NAME")
      ->capture_default_str();
  verb->add_option("--group", options.group,
                   "Columns that share a scale, for --shape and integers (0: a row; default: 128)")
      ->excludes(model)
      ->check(CLI::Range(0, kMostGroup))
      ->type_name("N");
  add_tokens(verb, options.tokens);
  add_backend(verb, options.backend, "Only this backend (default: the plan's choice)");
  verb->add_option("--device", options.device,
                   "auto, cpu, cuda (the first card here), cuda:1, ... (default: where the backend runs)")
      ->type_name("NAME");
  verb->add_option("--from", options.from, "On a card: what calls are given, ids or logits")
      ->check(CLI::IsMember({"ids", "logits"}))
      ->type_name("WHAT")
      ->capture_default_str();
  verb->add_option("--routing", options.routing, "On a card: how popular experts are, uniform or zipf")
      ->check(CLI::IsMember({"uniform", "zipf"}))
      ->type_name("HOW")
      ->capture_default_str();
  verb->add_option("--seconds", options.seconds, "Of timed calls for each token count")
      ->check(CLI::Range(0.0, kMostSeconds))
      ->type_name("S")
      ->capture_default_str();
  verb->add_option("--threads", options.threads, "Threads (0: as many as this process may use)")
      ->check(CLI::Range(0, kMostThreads))
      ->type_name("N")
      ->capture_default_str();
  verb->add_option("--html", options.html, "Also write a page that draws the results and needs no network")
      ->type_name("FILE");
  add_cache(verb, options.cache);
}

void add_sample(CLI::App& app, SampleOptions& options) {
  CLI::App* verb = add_verb(app, kSample);
  std::vector<std::string> families;
  for (const auto all : {testing::sample_families(), testing::gguf_sample_families()})
    for (std::string_view family : all) families.emplace_back(family);
  verb->add_option("FAMILY", options.family, "One of " + listed(families))->required()->type_name("");
  verb->add_option("OUT", options.directory, "Directory to create")->required()->type_name("");
  verb->add_option("--seed", options.seed, "Seed of the weights")
      ->check(not_negative)
      ->type_name("N")
      ->capture_default_str();
}

/// The verb that was named, with its options.
Arguments chosen(const CLI::App& app, const Parsed& parsed) {
  const std::string verb = app.get_subcommands().front()->get_name();
  if (verb == "inspect") return {parsed.inspect, parsed.form};
  if (verb == "explain") return {parsed.explain, parsed.form};
  if (verb == "run") return {parsed.run, parsed.form};
  if (verb == "check") return {parsed.check, parsed.form};
  if (verb == "bench") return {parsed.bench, parsed.form};
  return {parsed.sample, parsed.form};
}

bool asks_for_json(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i)
    if (std::string_view(argv[i]) == "--json") return true;
  return false;
}

int usage_error(const CLI::App& app, const std::string& why, Form form) {
  const auto verbs = app.get_subcommands();
  const std::string help =
      verbs.empty() ? "sluice --help" : "sluice " + verbs.front()->get_name() + " --help";
  report({.code = "usage", .what = why, .why = "the command line does not make sense", .todo = "see " + help},
         form);
  return kUsage;
}

/// `sluice` alone, or with --json only.
int no_verb(const CLI::App& app, Form form) {
  if (form == Form::json) return usage_error(app, "no verb was given", form);
  fmt::print(stderr, "{}", app.help());
  return kUsage;
}

}  // namespace

std::variant<Arguments, int> parse_arguments(int argc, const char* const* argv) {
  Parsed parsed;
  CLI::App app(kAbout, "sluice");
  app.footer(kExitCodes);
  app.set_help_flag("-h,--help", "Print this help and exit");
  app.set_version_flag("--version", "sluice " SLUICE_VERSION, "Print the version and exit");
  app.add_flag(
      "--json", [&](std::int64_t) { parsed.form = Form::json; }, "Print JSON (docs/schemas) instead of text");
  app.require_subcommand(0, 1);
  add_inspect(app, parsed.inspect);
  add_explain(app, parsed.explain);
  add_run(app, parsed.run);
  add_check(app, parsed.check);
  add_bench(app, parsed.bench);
  add_sample(app, parsed.sample);

  const Form form = asks_for_json(argc, argv) ? Form::json : Form::text;
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    print(help_of(app));
    return kOk;
  } catch (const CLI::CallForVersion&) {
    print("sluice " SLUICE_VERSION "\n");
    return kOk;
  } catch (const CLI::ParseError& error) {
    return usage_error(app, error.what(), form);
  }
  if (app.get_subcommands().empty()) return no_verb(app, form);
  return chosen(app, parsed);
}

}  // namespace sluice::tools
