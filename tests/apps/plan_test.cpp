// qengine plan as scripts use it; and what it says before a load is what the load then takes.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/support/paths.hpp"
#include "tests/support/program.hpp"

namespace qengine {
namespace {

using test::run;
using Json = nlohmann::ordered_json;

Json json_of(std::vector<std::string> args) {
  args.push_back("--json");
  const test::Outcome o = run(args);
  EXPECT_EQ(o.code, 0) << o.err;
  return Json::parse(o.out, nullptr, false);
}

// Every checkpoint that can be loaded: folders with weights, GGUF files.
std::vector<std::string> all_fixtures() {
  namespace fs = std::filesystem;
  std::set<std::string> found;
  for (const char* known : {"tiny-qwen3", "gguf/tiny-llama-q4_1.gguf"}) {
    const fs::path one = test::fixture(known);
    if (one.empty()) continue;
    const fs::path root = std::string_view(known).starts_with("gguf/") ? one.parent_path().parent_path() : one.parent_path();
    for (const auto& e : fs::directory_iterator(root))
      if (fs::exists(e.path() / "config.json") && fs::exists(e.path() / "model.safetensors")) found.insert(e.path().filename().string());
    if (fs::exists(root / "gguf"))
      for (const auto& e : fs::directory_iterator(root / "gguf"))
        if (e.path().extension() == ".gguf") found.insert("gguf/" + e.path().filename().string());
  }
  return {found.begin(), found.end()};
}

class PlanAndLoad : public ::testing::TestWithParam<std::string> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PlanAndLoad);

TEST(PlanAndLoadFixtures, AreThere) { EXPECT_GE(all_fixtures().size(), 10u); }

TEST_P(PlanAndLoad, AgreeToTheByte) {
  const auto model = test::fixture(GetParam());
  if (model.empty()) GTEST_SKIP() << "no fixture " << GetParam();
  const std::string path = model.string();
  const Json plan = json_of({"plan", path, "--device", "cpu"});
  const Json loaded = json_of({"run", path, "--device", "cpu", "--prompt-ids", "1,2,3", "--max-tokens", "1", "--threads", "1", "--log-level", "error"});
  ASSERT_TRUE(plan.is_object() && loaded.is_object());
  EXPECT_EQ(plan["budget"]["weights"], loaded["memory"]["weights_bytes"]);
  std::int64_t owners = 0;
  for (const auto& bytes : plan["by_plugin"]) owners += bytes.get<std::int64_t>();
  EXPECT_EQ(plan["budget"]["weights"], owners);
  const Json inspect = json_of({"inspect", path, "--device", "cpu"});
  EXPECT_EQ(plan["kv"]["bytes_per_token"], inspect["kv"]["bytes_per_token"]);
  EXPECT_EQ(plan["model"]["max_model_len"], inspect["model"]["max_model_len"]);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, PlanAndLoad, ::testing::ValuesIn(all_fixtures()),
                         [](const auto& test) {
                           std::string name = test.param;
                           for (char& c : name)
                             if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
                           return name;
                         });

TEST(PlanCommand, SaysWhatIsShortAndWhatWouldFit) {
  const std::vector<std::string> args{"plan", "--shape", "llama-3.3-70b", "--format", "awq", "--kv-cache-dtype", "bfloat16", "--bytes", "stored", "--context", "8192", "--device", "l40s", "--assert-fit", "--json"};
  const test::Outcome o = run(args);
  EXPECT_EQ(o.code, 6) << o.err;
  const Json plan = Json::parse(o.out, nullptr, false);
  ASSERT_TRUE(plan.is_object());
  EXPECT_EQ(plan["schema"], "qengine.plan/1");
  EXPECT_EQ(plan["fits"], false);
  // Ten blocks of 16 tokens are missing, less what the pool leaves over.
  const std::int64_t short_bytes = plan["short_bytes"], block = plan["kv"]["block_bytes"];
  EXPECT_EQ(short_bytes, 512 * block - plan["budget"]["kv_available"].get<std::int64_t>());
  const std::string advice = plan["advice"].dump();
  for (const char* part : {"short", "--context 8032", "--kv-cache-dtype fp8", "--device a6000", "--gpu-memory-utilization 0.93"}) EXPECT_NE(advice.find(part), std::string::npos) << part << " in " << advice;
  // Each change that is named is enough.
  for (const std::vector<std::string>& change : {std::vector<std::string>{"--context", "8032"}, {"--kv-cache-dtype", "fp8"}, {"--device", "a6000"}, {"--gpu-memory-utilization", "0.93"}}) {
    std::vector<std::string> again = args;
    for (std::size_t i = 0; i < again.size(); ++i)
      if (again[i] == change[0]) again.erase(again.begin() + static_cast<std::ptrdiff_t>(i), again.begin() + static_cast<std::ptrdiff_t>(i) + 2);
    again.insert(again.end(), change.begin(), change.end());
    EXPECT_EQ(run(again).code, 0) << change[0];
  }
}

TEST(PlanCommand, ComparesFormatsAndRanksDevicesByPrice) {
  const Json compared = json_of({"plan", "--shape", "qwen3-8b", "--format", "awq,fp8", "--compare", "--bytes", "stored", "--device", "h200"});
  ASSERT_EQ(compared["plans"].size(), 4u);
  bool found = false;
  for (const Json& c : compared["crossings"]) found |= c["a"] == "awq + bfloat16" && c["b"] == "fp8 + fp8" && c["tokens"] == 45264;
  EXPECT_TRUE(found) << compared["crossings"].dump();
  EXPECT_EQ(compared["cheapest"][0]["arm"], "awq + fp8");
  const Json ranked = json_of({"plan", "--shape", "qwen3-32b", "--format", "awq", "--bytes", "stored", "--context", "8192", "--device", "rtx4090,h200,ada-8gb-laptop,l40s", "--price", "rtx4090=3,h200=2,ada-8gb-laptop=1"});
  EXPECT_EQ(ranked["devices_that_fit"], Json({"h200", "rtx4090", "l40s"}));
}

TEST(PlanCommand, ReservesAndDevicesAsTheyAreGiven) {
  const Json p = json_of({"plan", "--shape", "qwen3-4b", "--format", "awq", "--bytes", "stored", "--max-model-len", "8192", "--device", "sm=89,mem=8188MiB,bw=256GB/s", "--reserve", "context=300MiB,graphs=128MiB"});
  EXPECT_EQ(p["budget"]["requested"], 7898881065);
  EXPECT_EQ(p["budget"]["context"], 314572800);
  EXPECT_EQ(p["budget"]["graphs"], 134217728);
  EXPECT_EQ(p["budget"]["load_peak"], 3006374912);
  EXPECT_EQ(p["read_bytes"]["c=1,ctx=384"], 2722553856);
  EXPECT_EQ(p["device"]["bandwidth_bytes_s"], 256000000000);
}

TEST(PlanCommand, PlotIsAPictureOfEveryArm) {
  const auto file = std::filesystem::path(::testing::TempDir()) / ("plan_" + std::to_string(getpid()) + ".svg");
  json_of({"plan", "--shape", "qwen3-0.6b", "--format", "awq,bf16", "--compare", "--bytes", "stored", "--device", "rtx4090", "--plot", file.string()});
  std::ifstream in(file);
  const std::string svg{std::istreambuf_iterator<char>(in), {}};
  std::filesystem::remove(file);
  for (const char* part : {"<svg", "awq + bfloat16", "bf16 + fp8", "RTX 4090", "</svg>"}) EXPECT_NE(svg.find(part), std::string::npos) << part;
}

TEST(PlanCommand, WhatCannotBePlannedIsSaid) {
  for (const auto& [args, part] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"plan"}, "no model"},
           {{"plan", "--shape", "qwen3-5b"}, "did you mean qwen3-"},
           {{"plan", "--shape", "qwen3-4b", "--device", "h300"}, "h200"},
           {{"plan", "--shape", "qwen3-4b", "--device", "h200", "--format", "int5", "--bytes", "stored"}, "no format is called"},
           {{"plan", "--shape", "qwen3-4b", "--device", "h200", "--reserve", "context"}, "--reserve context"},
           {{"plan", "--shape", "qwen3-4b", "--device", "h200", "--format", "awq+fp7"}, "fp7"},
           {{"plan", "--shape", "qwen3-30b-a3b", "--device", "h200"}, "--bytes stored"}}) {
    const test::Outcome o = run(args);
    EXPECT_EQ(o.code, 2) << part;
    EXPECT_NE(o.err.find(part), std::string::npos) << o.err;
  }
}

TEST(GreedyHash, AModelEqualsItselfAndAQuantizedOneSaysWhereItParts) {
  const auto base = test::fixture("tiny-qwen3"), quantized = test::fixture("awq-gemm-g128");
  if (base.empty() || quantized.empty()) GTEST_SKIP() << "no fixtures";
  const Json same = json_of({"eval", "greedy", base.string(), "--reference", base.string(), "--prompt-ids", "1,2,3", "--prompt-ids", "9,8,7,6", "--max-tokens", "12", "--repeat"});
  EXPECT_EQ(same["equal_count"], 2);
  EXPECT_EQ(same["repeat_equal_count"], 2);
  EXPECT_EQ(same["prompts"][0]["token_ids"].size(), 12u);
  EXPECT_EQ(same["prompts"][0]["sha256"].get<std::string>().size(), 64u);
  const Json other = json_of({"eval", "greedy-hash", quantized.string(), "--reference", base.string(), "--prompt-ids", "5,6,7,8", "--max-tokens", "64"});
  const Json& p = other["prompts"][0];
  ASSERT_EQ(p["equal"], false);  // four bits of a random model: 64 tokens do not agree
  const auto at = p["first_difference"].get<std::size_t>();
  EXPECT_NE(p["token_ids"][at], p["reference_token_ids"][at]);
  for (std::size_t i = 0; i < at; ++i) EXPECT_EQ(p["token_ids"][i], p["reference_token_ids"][i]);
  EXPECT_GE(p["gap"].get<double>(), 0);
}

TEST(Doctor, NamesTheMachineAndThePlugins) {
  const test::Outcome o = run({"doctor", "--json"});
  const Json d = Json::parse(o.out, nullptr, false);
  ASSERT_TRUE(d.is_object()) << o.err;
  EXPECT_EQ(o.code, d["failures"] == 0 ? 0 : 5);
  bool bf16 = false;
  for (const Json& p : d["plugins"]) bf16 |= p["plugin"] == "bf16_ref" && p["schemes"].dump().find("native") != std::string::npos;
  EXPECT_TRUE(bf16);
  for (const Json& c : d["checks"]) EXPECT_TRUE(c["status"] == "ok" || c.contains("remedy")) << c.dump();
}

}  // namespace
}  // namespace qengine
