// What `qengine plan` says before a load is what the load then takes, on every fixture that can be loaded.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "tests/support/paths.hpp"

namespace qengine {
namespace {

using Json = nlohmann::json;

// stdout of the program as JSON; null when it failed.
Json qengine_json(const std::string& args) {
  const std::string command = "'" + (test::binary_dir() / "bin/qengine").string() + "' " + args + " --json 2>/dev/null";
  std::FILE* pipe = popen(command.c_str(), "r");
  if (!pipe) return nullptr;
  std::string text;
  std::array<char, 4096> buffer;
  for (std::size_t n; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) text.append(buffer.data(), n);
  return pclose(pipe) == 0 ? Json::parse(text, nullptr, false) : Json();
}

class PlanAndLoad : public ::testing::TestWithParam<const char*> {};

TEST_P(PlanAndLoad, AgreeToTheByte) {
  const auto model = test::fixture(GetParam());
  if (model.empty()) GTEST_SKIP() << "no fixture " << GetParam();
  const std::string path = "'" + model.string() + "'";
  const Json plan = qengine_json("plan " + path + " --device h200");
  ASSERT_TRUE(plan.is_object()) << "plan failed";
  const Json run = qengine_json("run " + path + " --prompt-ids 1,2,3 --max-tokens 1 --threads 1 --log-level error");
  ASSERT_TRUE(run.is_object()) << "run failed";
  EXPECT_EQ(plan["budget"]["weights"], run["memory"]["weights_bytes"]);
  std::int64_t owners = 0;
  for (const auto& bytes : plan["by_plugin"]) owners += bytes.get<std::int64_t>();
  EXPECT_EQ(plan["budget"]["weights"], owners);
  const Json inspect = qengine_json("inspect " + path);
  ASSERT_TRUE(inspect.is_object());
  EXPECT_EQ(plan["kv"]["bytes_per_token"], inspect["kv"]["bytes_per_token"]);
  EXPECT_EQ(plan["model"]["max_model_len"], inspect["model"]["max_model_len"]);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, PlanAndLoad,
                         ::testing::Values("tiny-qwen3", "tiny-llama", "tiny-qwen2", "awq-gemm-g128", "gptq-w4-g128", "gptq-w4-g128-desc_act", "gptq-w8-g128", "ct-w4a16", "ct-fp8-dynamic",
                                           "ct-fp8-static-kv", "ct-nvfp4a16", "fp8-block", "bnb-nf4", "bnb-int8", "gguf/tiny-qwen3-q4_k.gguf"),
                         [](const auto& test) {
                           std::string name = test.param;
                           for (char& c : name)
                             if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
                           return name;
                         });

}  // namespace
}  // namespace qengine
