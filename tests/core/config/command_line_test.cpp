#include "core/config/command_line.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "core/base/error.hpp"

namespace qengine {
namespace {

const SettingGroup& own() {
  static const SettingGroup group{"Own", {{.name = "prompt", .kind = Kind::kTexts, .value = "TEXT", .help = "x"},
                                          {.name = "chat", .kind = Kind::kBool, .fallback = "false", .help = "x"}}};
  return group;
}

CommandLineSpec spec() {
  return {"run",
          {&own(), &model_settings(), &engine_settings(), &plugin_settings(), &sampling_settings(), &server_settings(), &output_settings(), &general_settings()},
          {},
          {{"runs", "bench latency"}},
          "model",
          0};
}

Arguments parse(std::vector<std::string> args, std::map<std::string, std::string> env = {}) {
  const CommandLineSpec s = spec();
  const auto groups = profile_groups();
  return resolve(s, args, env, groups);
}

// The whole text of the error that these arguments end with.
std::string refusal(std::vector<std::string> args, std::map<std::string, std::string> env = {}) {
  try {
    parse(std::move(args), std::move(env));
    return "accepted";
  } catch (const Error& e) {
    return e.what();
  }
}

TEST(CommandLine, ReadsEveryFormOfAFlag) {
  const Values v = parse({"m.gguf", "--max_num_seqs", "8", "--max-num-batched-tokens=1K", "--exact", "--no-enable-prefix-caching", "-q", "awq", "-tp", "1",
                          "--prompt", "--a_b, c", "--prompt=two", "--stop", "", "--max-model-len", "-1", "--kv_cache_memory_bytes=1GiB", "-v"})
                       .values;
  EXPECT_EQ(v.text("model"), "m.gguf");
  EXPECT_EQ(v.integer("max-num-seqs"), 8);
  EXPECT_EQ(v.integer("max-num-batched-tokens"), 1024);
  EXPECT_TRUE(v.flag("exact"));
  EXPECT_FALSE(v.flag("enable-prefix-caching"));
  EXPECT_EQ(v.text("quantization"), "awq");
  EXPECT_EQ(v.integer("tensor-parallel-size"), 1);
  EXPECT_EQ(v.list("prompt"), (std::vector<std::string>{"--a_b, c", "two"}));
  EXPECT_EQ(v.list("stop"), (std::vector<std::string>{""}));
  EXPECT_EQ(v.integer("max-model-len"), -1);
  EXPECT_EQ(v.integer("kv-cache-memory-bytes"), 1 << 30);
  EXPECT_EQ(v.text("log-level"), "debug");
}

TEST(CommandLine, ABooleanTakesAValueOnlyWithEquals) {
  EXPECT_TRUE(parse({"--exact=yes"}).values.flag("exact"));
  EXPECT_FALSE(parse({"--exact=false"}).values.flag("exact"));
  EXPECT_EQ(parse({"--exact", "false"}).values.text("model"), "false");  // a word of its own
}

TEST(CommandLine, ListsAreRepeatedOrSeparatedByCommas) {
  EXPECT_EQ(parse({"--plugin-path", "a,b", "--plugin-path", "c"}).values.list("plugin-path"), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(parse({"--prompt", "a,b"}).values.list("prompt"), (std::vector<std::string>{"a,b"}));
}

TEST(CommandLine, RefusesWithAHint) {
  EXPECT_EQ(refusal({"--max-model-length", "9"}), "E101 unknown option --max-model-length\n  hint  did you mean --max-model-len? (qengine run --help)");
  EXPECT_EQ(refusal({"--max-mod", "9"}).substr(0, 29), "E101 unknown option --max-mod");  // no guessing
  EXPECT_EQ(refusal({"--runs", "9"}), "E101 unknown option --runs\n  hint  --runs belongs to qengine bench latency");
  EXPECT_EQ(refusal({"--xyzzy"}), "E101 unknown option --xyzzy\n  hint  qengine run --help lists the options");
  EXPECT_EQ(refusal({"--port", "70000"}), "E101 --port: \"70000\" is not an integer from 0 to 65535");
  EXPECT_EQ(refusal({"--dtype", "bfloat"}).substr(0, 41), "E101 --dtype: \"bfloat\" is not auto, half,");
  EXPECT_EQ(refusal({"--prompt"}).substr(0, 34), "E101 --prompt needs a value: TEXT\n");
  EXPECT_EQ(refusal({"--prompt", "--exact"}).substr(0, 34), "E101 --prompt needs a value: TEXT\n");
  EXPECT_EQ(refusal({"--seed", "1", "--seed", "2"}).substr(0, 41), "E101 --seed is given more than once\n  hin");
  EXPECT_EQ(refusal({"a", "--model", "b"}).substr(0, 33), "E101 two models: a and --model b\n");
  EXPECT_EQ(refusal({"a", "--model", "a"}), "accepted");
  EXPECT_EQ(refusal({"a", "b"}).substr(0, 26), "E101 unexpected argument b");
  EXPECT_EQ(refusal({"--no-exact=true"}).substr(0, 33), "E101 --no-exact takes no value\n  ");
  EXPECT_EQ(refusal({"-x"}).substr(0, 22), "E101 unknown option -x");
}

TEST(CommandLine, FlagsOfVllmPassOrSayWhatReplacesThem) {
  EXPECT_EQ(refusal({"--linear-backend", "marlin"}),
            "E106 --linear-backend is a vLLM flag that qengine does not have\n  hint  kernels belong to plugins: --plugin-opt awq_marlin.kernel=NAME, "
            "names in qengine plugin info awq_marlin");
  const Arguments a = parse({"--trust-remote-code", "--tokenizer-mode", "auto", "--swap-space", "4", "--disable-log-requests",
                             "--distributed-executor-backend", "mp", "--no-enable-lora", "m"});
  EXPECT_EQ(a.notices.size(), 6u);
  EXPECT_EQ(a.values.text("model"), "m");
}

TEST(CommandLine, FlagBeatsEnvironmentBeatsProfileBeatsDefault) {
  const auto file = std::filesystem::path(::testing::TempDir()) / ("precedence" + std::to_string(getpid()) + ".toml");
  std::ofstream(file) << "schema = 1\n[engine]\nblock_size = 48\nseed = 8\nmax_num_seqs = 8\n[model]\nserved_model_name = [\"a\", \"b\"]\n";
  const Values v = parse({"--config", file.string(), "--block-size", "32"}, {{"QENGINE_BLOCK_SIZE", "64"}, {"QENGINE_SEED", "16"}}).values;
  EXPECT_EQ(v.integer("block-size"), 32);
  EXPECT_EQ(v.at("block-size").origin, Origin::kFlag);
  EXPECT_EQ(v.integer("seed"), 16);
  EXPECT_EQ(v.at("seed").where, "QENGINE_SEED");
  EXPECT_EQ(v.integer("max-num-seqs"), 8);
  EXPECT_EQ(v.at("max-num-seqs").where, file.string() + ":5:1");
  EXPECT_EQ(v.text("dtype"), "auto");
  EXPECT_EQ(v.list("served-model-name"), (std::vector<std::string>{"a", "b"}));
  // A list from a stronger source replaces the whole list.
  EXPECT_EQ(parse({"--config", file.string(), "--served-model-name", "c"}).values.list("served-model-name"), (std::vector<std::string>{"c"}));
  // The profile may itself be named in the environment.
  EXPECT_EQ(parse({}, {{"QENGINE_CONFIG", file.string()}}).values.integer("seed"), 8);
  std::filesystem::remove(file);
}

TEST(CommandLine, AnUnknownEnvironmentNameIsAWarningWithASuggestion) {
  const Arguments a = parse({}, {{"QENGINE_MAX_MODEL_LENGTH", "9"}, {"QENGINE_PORT", "9000"}, {"QENGINE_PLUGIN_PATH", "x"}});
  ASSERT_EQ(a.notices.size(), 1u);
  EXPECT_NE(a.notices[0].find("did you mean QENGINE_MAX_MODEL_LEN?"), std::string::npos) << a.notices[0];
  EXPECT_EQ(refusal({}, {{"QENGINE_SEED", "x"}}).substr(0, 42), "E101 QENGINE_SEED: \"x\" is not an integer o");
}

// What is printed can be read back, and says the same.
TEST(CommandLine, PrintedConfigurationIsAProfileOfTheSameValues) {
  const CommandLineSpec s = spec();
  const Arguments a = parse({"/m", "--exact", "--temperature", "0.5", "--stop", "a\"b\n", "--api-key", "hunter2", "--kv-cache-memory-bytes", "1GiB"},
                            {{"QENGINE_SEED", "7"}});
  const std::string text = print_config(s, a);
  EXPECT_EQ(text.find("hunter2"), std::string::npos);
  EXPECT_NE(text.find("seed = 7  # env QENGINE_SEED"), std::string::npos) << text;
  EXPECT_NE(text.find("exact = true  # flag --exact"), std::string::npos) << text;
  const Profile p = parse_profile(text, "printed", "/");
  std::size_t checked = 0;
  for (const ProfileValue& v : p.values) {
    if (v.setting->secret) continue;
    EXPECT_EQ(v.texts, a.values.list(v.setting->name)) << v.setting->key;
    ++checked;
  }
  EXPECT_GT(checked, 20u);
}

TEST(CommandLine, ABackendsKeysStandInPlaceOfTheOthers) {
  Arguments a = parse({"/m", "--quantization", "fp8", "--kv-cache-dtype", "fp8", "--max-num-seqs", "4"});
  a.profile.options = {{"awq_marlin", "fp32_scales", "false", ""}};
  const Profile p = parse_profile("schema = 1\n[[backend]]\nname = \"b\"\nplugin = \"awq_marlin\"\nmax_num_seqs = 8\n[backend.options.awq_marlin]\nfp32_scales = true\n[[backend]]\nname = \"c\"\nkv_plugin = \"kv_fp8\"\n", "q", "/");
  const Arguments b = with_backend(a, p.backends[0]), c = with_backend(a, p.backends[1]);
  EXPECT_EQ(b.values.text("plugin"), "awq_marlin");
  EXPECT_FALSE(b.values.has("quantization"));  // it would name another one
  EXPECT_EQ(b.values.integer("max-num-seqs"), 8);
  EXPECT_EQ(b.values.text("kv-cache-dtype"), "fp8");
  EXPECT_EQ(b.values.text("model"), "/m");
  EXPECT_EQ(b.profile.options.back().value, "true");
  EXPECT_EQ(c.values.text("quantization"), "fp8");
  EXPECT_EQ(c.values.text("kv-cache-dtype"), "auto");
  EXPECT_EQ(c.values.text("kv-plugin"), "kv_fp8");
  EXPECT_EQ(a.values.text("quantization"), "fp8");
}

TEST(Help, ListsEveryFlagOfItsGroupsInFewColumns) {
  const CommandLineSpec s = spec();
  const std::string text = help_text(s.groups, {}, 100, false);
  for (const SettingGroup* g : s.groups)
    for (const Setting& f : g->settings) EXPECT_EQ(text.find(std::string("]") + f.name) != text.npos || text.find(std::string("--") + f.name) != text.npos, !f.hidden) << f.name;
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find('\n', begin)) != text.npos; begin = end + 1) EXPECT_LE(end - begin, 100u) << text.substr(begin, end - begin);
}

}  // namespace
}  // namespace qengine
