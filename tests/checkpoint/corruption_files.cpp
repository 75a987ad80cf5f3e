// SPDX-License-Identifier: Apache-2.0
// Corruptions of files, links and the index.
#include <sys/stat.h>

#include <filesystem>

#include "corruption.h"

namespace sluice::testing {
namespace {

namespace fs = std::filesystem;

const char* const kShardEntry = "\"model-00002-of-00002.safetensors\"";

void truncate(EditableModel& model, const char* name, std::uintmax_t bytes) {
  model.finally = [=](const fs::path& directory) { fs::resize_file(directory / name, bytes); };
}

/// Replaces a file by something else of its name.
void replace_file(EditableModel& model, std::string name, void (*make)(const fs::path&)) {
  model.finally = [=](const fs::path& directory) {
    fs::remove(directory / name);
    make(directory / name);
  };
}

void keep_only(EditableModel& model, std::vector<std::string> names) {
  model.files.clear();
  model.index.clear();
  model.finally = [=](const fs::path& directory) {
    for (const std::string& name : names) write_file(directory / name, "weights");
  };
}

// clang-format off
const Corruption kFiles[] = {
    {"truncated", kMixtral, [](EditableModel& m) { truncate(m, "model.safetensors", 700'000); },
     "offset_past_end", {"model.safetensors", "data end at byte"}},
    {"empty_file", kMixtral, [](EditableModel& m) { truncate(m, "model.safetensors", 0); },
     "file_too_short", {"model.safetensors", "0 bytes"}},
    {"four_byte_file", kMixtral, [](EditableModel& m) { truncate(m, "model.safetensors", 4); },
     "file_too_short", {"4 bytes"}},
    {"header_only", kMixtral, [](EditableModel& m) { truncate(m, "model.safetensors", 100); },
     "header_past_end", {"model.safetensors", "92"}},
    {"missing_shard", kBlock, [](EditableModel& m) { m.files.erase(kFirstShard); },
     "missing_shard", {"index.json", "shard model-00001-of-00002.safetensors", "hf download"}},
    {"shard_that_is_a_link_to_nothing", kBlock,
     [](EditableModel& m) {
       replace_file(m, kFirstShard, [](const fs::path& at) { fs::create_symlink("gone", at); });
     },
     "missing_shard", {"index.json", "shard model-00001-of-00002.safetensors", "a link to none"}},
    {"scale_that_the_index_leaves_out", kV4,
     [](EditableModel& m) {
       m.add({"layers.0.ffn.experts.0.w1.weight_scale_2", DType::f32, {}, std::vector<std::byte>(4)});
     },
     "unused_scale", {"layers.0.ffn.experts.0.w1.weight_scale_2", "model-00001-of-00003.safetensors"}},
    {"index_names_nothing", kBlock, [](EditableModel& m) { m.in_index(kShardEntry, "null"); },
     "config_wrong_type", {"weight_map", "the name of a shard"}},
    {"index_names_a_tensor_that_no_shard_holds", kBlock,
     [](EditableModel& m) {
       m.in_index("\"weight_map\": {", "\"weight_map\": {\"ghost\": " + std::string(kShardEntry) + ",");
     },
     "index_names_missing_tensor", {"ghost", "model-00002", "no shard does"}},
    {"index_names_the_wrong_shard", kBlock,
     [](EditableModel& m) {
       m.in_index("\"model.layers.0.mlp.gate.weight\": \"model-00001",
                  "\"model.layers.0.mlp.gate.weight\": \"model-00002");
     },
     "index_names_wrong_shard", {"model.layers.0.mlp.gate.weight", "model-00002", "model-00001"}},
    {"index_parent_directory", kBlock,
     [](EditableModel& m) { m.in_index(kShardEntry, "\"../secret.safetensors\""); },
     "index_path", {"../secret.safetensors"}},
    {"index_nested_path", kBlock,
     [](EditableModel& m) { m.in_index(kShardEntry, "\"a/../../b.safetensors\""); },
     "index_path", {"a/../../b.safetensors"}},
    {"index_absolute_path", kBlock,
     [](EditableModel& m) { m.in_index(kShardEntry, "\"/etc/x.safetensors\""); },
     "index_absolute_path", {"/etc/x.safetensors"}},
    {"index_hidden_file", kBlock, [](EditableModel& m) { m.in_index(kShardEntry, "\".x.safetensors\""); },
     "index_bad_name", {"\".x.safetensors\""}},
    {"index_backslash", kBlock, [](EditableModel& m) { m.in_index(kShardEntry, R"("..\\x.safetensors")"); },
     "index_bad_name", {"x.safetensors"}},
    {"index_zero_byte", kBlock, [](EditableModel& m) { m.in_index(kShardEntry, R"("x\u0000.safetensors")"); },
     "index_bad_name", {"x\\x00.safetensors"}},
    {"index_empty_name", kBlock, [](EditableModel& m) { m.in_index(kShardEntry, "\"\""); },
     "index_bad_name", {"in \"\""}},
    {"index_names_a_pickle", kBlock,
     [](EditableModel& m) { m.in_index(kShardEntry, "\"pytorch_model.bin\""); },
     "index_bad_suffix", {"pytorch_model.bin"}},
    {"index_names_a_number", kBlock, [](EditableModel& m) { m.in_index(kShardEntry, "7"); },
     "config_wrong_type", {"weight_map", "an integer", "a text"}},
    {"index_without_weight_map", kBlock, [](EditableModel& m) { m.index = "{}"; },
     "config_missing_key", {"weight_map"}},
    {"index_names_a_tensor_twice", kBlock,
     [](EditableModel& m) {
       m.in_index("\"weight_map\": {",
                  "\"weight_map\": {\"x\": \"a.safetensors\", \"x\": \"b.safetensors\",");
     },
     "duplicate_key", {"weight_map.x", "twice"}},
    {"index_is_no_json", kBlock, [](EditableModel& m) { m.index = "{\"weight_map\": "; },
     "config_not_json", {"index.json", "byte"}},
    {"link_out_of_the_directory", kMixtral,
     [](EditableModel& m) {
       replace_file(m, "model.safetensors", [](const fs::path& at) {
         fs::create_symlink(
             fs::path(SLUICE_SOURCE_DIR) / "tests/data/fixtures/mixtral_bf16/model.safetensors", at);
       });
     },
     "link_out", {"model.safetensors", "leads out"}},
    {"link_of_the_configuration", kMixtral,
     [](EditableModel& m) {
       replace_file(m, "config.json", [](const fs::path& at) { fs::create_symlink("/etc/hostname", at); });
     },
     "link_out", {"config.json", "/etc/hostname"}},
    {"shard_links_to_the_parent", kBlock,
     [](EditableModel& m) {
       replace_file(m, kFirstShard, [](const fs::path& at) {
         write_file(at.parent_path().parent_path() / "outside.safetensors", "x");
         fs::create_symlink("../outside.safetensors", at);
       });
     },
     "link_out", {"model-00001-of-00002.safetensors", "outside.safetensors"}},
    {"dangling_link", kMixtral,
     [](EditableModel& m) {
       replace_file(m, "model.safetensors", [](const fs::path& at) { fs::create_symlink("gone", at); });
     },
     "dangling_link", {"model.safetensors", "hf download"}, ErrorKind::io},
    {"directory_instead_of_a_file", kMixtral,
     [](EditableModel& m) {
       replace_file(m, "model.safetensors", [](const fs::path& at) { fs::create_directory(at); });
     },
     "not_a_file", {"model.safetensors", "a directory"}, ErrorKind::io},
    {"pipe_instead_of_a_file", kMixtral,
     [](EditableModel& m) {
       replace_file(m, "model.safetensors", [](const fs::path& at) { ::mkfifo(at.c_str(), 0600); });
     },
     "not_a_file", {"model.safetensors", "a pipe"}, ErrorKind::io},
    {"pickles_only", kMixtral, [](EditableModel& m) { keep_only(m, {"README.md", "pytorch_model.bin"}); },
     "pickle_not_read", {"pytorch_model.bin", "runs whatever code"}, ErrorKind::unsupported},
    {"gguf_only", kMixtral, [](EditableModel& m) { keep_only(m, {"model-q4.gguf"}); },
     "gguf_not_read", {"model-q4.gguf", "several GGUF models"}, ErrorKind::unsupported},
    {"gguf_without_config", kMixtral,
     [](EditableModel& m) {
       keep_only(m, {"model-q4.gguf"});
       m.finally = [keep = m.finally](const fs::path& directory) {
         keep(directory);
         fs::remove(directory / "config.json");
       };
     },
     "gguf_not_read", {"model-q4.gguf", "Give the .gguf file itself"}, ErrorKind::unsupported},
    {"no_weights", kMixtral, [](EditableModel& m) { keep_only(m, {}); },
     "no_weights", {"model.safetensors"}, ErrorKind::io},
    {"no_config", kMixtral, [](EditableModel& m) { replace_file(m, "config.json", [](const fs::path&) {}); },
     "no_config", {"config.json"}, ErrorKind::io},
};
// clang-format on

}  // namespace

std::span<const Corruption> file_corruptions() { return kFiles; }

}  // namespace sluice::testing
