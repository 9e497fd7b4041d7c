#include "core/config/profile.hpp"

#include <gtest/gtest.h>

#include "core/base/error.hpp"

namespace qengine {
namespace {

std::string refusal(const std::string& text) {
  try {
    parse_profile(text, "q.toml", "/etc/q");
    return "accepted";
  } catch (const Error& e) {
    return e.what();
  }
}

TEST(Profile, ReadsEveryPartOfTheExample) {
  const Profile p = parse_profile(R"(schema = 1
[model]
path = "models/Qwen3-4B-AWQ"
served_model_name = ["qwen3-4b", "default"]
max_model_len = "8K"
[engine]
device = "cuda:0"
gpu_memory_utilization = 0.92
max_num_seqs = 256
fallback = "warn"
require_format = ["linear=awq_marlin"]
[sampling]
temperature = 0.7
[plugins]
paths = ["plugins"]
trust = "hash"
[[plugins.allow]]
id = "com.acme.int3"
sha256 = "ABCDEF0123456789abcdef0123456789abcdef0123456789abcdef0123456789"
[plugins.options.awq_marlin]
fp32_scales = true
[[quant.override]]
match = 're:.*\.layers\.0\..*down_proj'
plugin = "bf16_ref"
[server]
host = "127.0.0.1"
port = 8000
api_key_file = "keys.txt"
max_num_queued_reqs = 1024
[gates]
kl_mean_fail = 0.24
)", "q.toml", "/etc/q");
  const auto texts = [&](const char* key) {
    for (const ProfileValue& v : p.values)
      if (std::string(v.setting->key) == key) return v.texts;
    return std::vector<std::string>{"(absent)"};
  };
  EXPECT_EQ(texts("model.path"), (std::vector<std::string>{"/etc/q/models/Qwen3-4B-AWQ"}));
  EXPECT_EQ(texts("model.max_model_len"), (std::vector<std::string>{"8192"}));
  EXPECT_EQ(texts("model.served_model_name"), (std::vector<std::string>{"qwen3-4b", "default"}));
  EXPECT_EQ(texts("engine.gpu_memory_utilization"), (std::vector<std::string>{"0.92"}));
  EXPECT_EQ(texts("plugins.paths"), (std::vector<std::string>{"/etc/q/plugins"}));
  EXPECT_EQ(texts("server.api_key_file"), (std::vector<std::string>{"/etc/q/keys.txt"}));
  EXPECT_EQ(texts("gates.kl_mean_fail"), (std::vector<std::string>{"0.24"}));
  ASSERT_EQ(p.allow.size(), 1u);
  EXPECT_EQ(p.allow[0].sha256.substr(0, 8), "abcdef01");
  ASSERT_EQ(p.options.size(), 1u);
  EXPECT_EQ(p.options[0].plugin + "." + p.options[0].key + "=" + p.options[0].value, "awq_marlin.fp32_scales=true");
  ASSERT_EQ(p.overrides.size(), 1u);
  EXPECT_EQ(p.overrides[0].match, R"(re:.*\.layers\.0\..*down_proj)");
  EXPECT_EQ(p.overrides[0].where, "q.toml:22:1");
}

TEST(Profile, AnUnknownKeyIsRefusedWithPlaceAndNearestName) {
  EXPECT_EQ(refusal("schema = 1\n[engine]\n\ngpu_memory_utilisation = 0.9\n"),
            "E102 q.toml:4:1: unknown key engine.gpu_memory_utilisation\n  hint  did you mean gpu_memory_utilization?");
  EXPECT_EQ(refusal("schema = 1\n[engine]\n  port = 1\n"), "E102 q.toml:3:3: unknown key engine.port\n  hint  that key is in [server]");
  EXPECT_EQ(refusal("schema = 1\n[plugins]\nxyzzy = 1\n"), "E102 q.toml:3:1: unknown key plugins.xyzzy\n  hint  keys of [plugins]: allow options paths trust");
  EXPECT_EQ(refusal("schema = 1\n[engin]\n"), "E102 q.toml:2:2: unknown table or key engin\n  hint  did you mean engine?");
  EXPECT_EQ(refusal("schema = 1\n[[quant.override]]\nmatch = \"a\"\nplugin = \"b\"\nplugn = \"b\"\n").substr(0, 47), "E102 q.toml:5:1: unknown key quant.override.plu");
}

TEST(Profile, AWrongTypeSaysWhatWasFoundAndExpected) {
  EXPECT_EQ(refusal("schema = 1\n[engine]\nblock_size = true\n"), "E102 q.toml:3:14: engine.block_size is true or false, expected an integer");
  EXPECT_EQ(refusal("schema = 1\n[engine]\nblock_size = 1.5\n"), "E102 q.toml:3:14: engine.block_size is a number, expected an integer");
  EXPECT_EQ(refusal("schema = 1\n[engine]\nexact = 1\n"), "E102 q.toml:3:9: engine.exact is an integer, expected true or false");
  EXPECT_EQ(refusal("schema = 1\n[engine]\nexact = \"true\"\n"), "E102 q.toml:3:9: engine.exact is a text, expected true or false");
  EXPECT_EQ(refusal("schema = 1\n[model]\npath = [\"a\"]\n"), "E102 q.toml:3:8: model.path is a list, expected a text");
  EXPECT_EQ(refusal("schema = 1\n[server]\nport = 99999\n"), "E102 q.toml:3:8: server.port: 99999 is not an integer from 0 to 65535");
  EXPECT_EQ(refusal("schema = 1\n[engine]\nfallback = \"wrn\"\n"), "E102 q.toml:3:12: engine.fallback: \"wrn\" is not error, warn or allow");
  EXPECT_EQ(refusal("schema = 1\nengine = 3\n"), "E102 q.toml:2:10: engine is an integer, expected a table: [engine]");
  EXPECT_EQ(refusal("schema = 1\n[sampling]\ntemperature = nan\n").substr(0, 44), "E102 q.toml:3:15: sampling.temperature: nan ");
  EXPECT_EQ(refusal("schema = 1\n[server]\napi_key = [\"hunter2\", 3.5]\n").find("hunter2"), std::string::npos);
}

TEST(Profile, WhatIsNoTomlIsRefusedWithLineAndColumn) {
  EXPECT_EQ(refusal("schema = 1\n[model\n").substr(0, 15), "E102 q.toml:2:7");
  EXPECT_EQ(refusal("[model]\n"), "E102 q.toml:1:1: missing key schema\n  hint  begin the file with: schema = 1");
  EXPECT_EQ(refusal("schema = 2\n").substr(0, 48), "E102 q.toml:1:10: schema is 2, expected 1");
  EXPECT_EQ(refusal("schema = 1\n[[plugins.allow]]\nid = \"a\"\nsha256 = \"12\"\n").substr(0, 60), "E102 q.toml:4:10: plugins.allow.sha256 of a is not 64 hex di");
  EXPECT_EQ(refusal("schema = 1\n[[quant.override]]\nmatch = \"a\"\n"), "E102 q.toml:2:1: [[quant.override]] has no plugin");
  EXPECT_EQ(refusal("\xff\xfe").substr(0, 12), "E102 q.toml:");
  EXPECT_EQ(refusal(""), "accepted");
  std::string deep = "schema = 1\na";
  for (int i = 0; i < 100'000; ++i) deep += ".a";
  EXPECT_EQ(refusal(deep + " = 1").substr(0, 46), "E102 q.toml:2:1: the key is nested too deeply\n");
  EXPECT_EQ(refusal("schema = 1\nx = " + std::string(100'000, '[')).substr(0, 14), "E102 q.toml:2:");
}

// Only what a running server can change by loading anew is a key of a backend.
TEST(Profile, ABackendHoldsKeysOfClassSwap) {
  const Profile p = parse_profile(R"(schema = 1
[[backend]]
name = "stable"
plugin = "awq_marlin"
[backend.options.awq_marlin]
fp32_scales = true
[[backend]]
name = "fp8"
path = "models/Qwen3-4B"
kv_cache_dtype = "fp8"
max_num_seqs = "1K"
)", "q.toml", "/etc/q");
  ASSERT_EQ(p.backends.size(), 2u);
  EXPECT_EQ(p.backends[0].name, "stable");
  EXPECT_EQ(p.backends[0].where, "q.toml:2:1");
  ASSERT_EQ(p.backends[0].options.size(), 1u);
  EXPECT_EQ(p.backends[0].options[0].plugin + "." + p.backends[0].options[0].key, "awq_marlin.fp32_scales");
  ASSERT_EQ(p.backends[1].values.size(), 3u);
  for (const ProfileValue& v : p.backends[1].values) {
    const std::string key = v.setting->key;
    EXPECT_EQ(v.texts, (std::vector<std::string>{key == "model.path" ? "/etc/q/models/Qwen3-4B" : key == "engine.kv_cache_dtype" ? "fp8" : "1024"})) << key;
  }
  EXPECT_EQ(refusal("schema = 1\n[[backend]]\nname = \"a\"\ndevice = \"cpu\"\n").substr(0, 44), "E102 q.toml:4:1: unknown key backend.device\n");
  EXPECT_EQ(refusal("schema = 1\n[[backend]]\nname = \"a\"\nplugn = \"x\"\n"), "E102 q.toml:4:1: unknown key backend.plugn\n  hint  did you mean plugin?");
  EXPECT_EQ(refusal("schema = 1\n[[backend]]\nplugin = \"x\"\n").substr(0, 44), "E102 q.toml:2:1: [[backend]] has no name\n  h");
  EXPECT_EQ(refusal("schema = 1\n[[backend]]\nname = \"a\"\n[[backend]]\nname = \"a\"\n"), "E102 q.toml:4:1: backend a is named twice\n  from  the first is at q.toml:2:1");
  EXPECT_EQ(refusal("schema = 1\n[[backend]]\nname = \"a b\"\n").substr(0, 45), "E102 q.toml:3:8: backend.name \"a b\" is not up");
}

TEST(Profile, ABackendMayComeAsJson) {
  const ProfileBackend b = parse_backend(R"({"plugin": "fp8_online", "path": "m", "max_num_seqs": 8, "options": {"fp8_online": {"x": true}}})", "backend", "/etc/q");
  EXPECT_EQ(b.name, "");
  EXPECT_EQ(b.values.size(), 3u);
  EXPECT_EQ(b.values[1].texts[0], "/etc/q/m");
  ASSERT_EQ(b.options.size(), 1u);
  EXPECT_EQ(b.options[0].value, "true");
  const auto refused = [](const char* j) {
    try {
      parse_backend(j, "backend", "/");
      return std::string("accepted");
    } catch (const Error& e) {
      return std::string(e.what());
    }
  };
  EXPECT_EQ(refused(R"({"port": 1})").substr(0, 38), "E102 backend: unknown key backend.port");
  EXPECT_EQ(refused(R"({"block_size": true})"), "E102 backend: engine.block_size is true or false, expected an integer");
  EXPECT_EQ(refused(R"({"plugin": null})").substr(0, 34), "E102 backend: plugin is neither a ");
  EXPECT_EQ(refused("[]").substr(0, 34), "E102 backend is no JSON object\n  h");
}

}  // namespace
}  // namespace qengine
