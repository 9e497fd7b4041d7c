// report, calibrate-kv and the load tests as their users run them.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>

#include "core/engine/engine.hpp"
#include "core/engine/run_observer.hpp"
#include "core/model/safetensors_writer.hpp"
#include "tests/apps/json_run.hpp"
#include "tests/support/golden.hpp"
#include "tests/support/paths.hpp"

namespace qengine {
namespace {

namespace fs = std::filesystem;
using test::json_of;
using TestJson = test::Json;

std::string content(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(Report, OneCommandMakesThePageAndGoesOnWhereItWas) {
  const auto model = test::fixture("tiny-qwen3");
  if (model.empty()) GTEST_SKIP() << "no fixture";
  const test::TemporaryFolder folder;
  std::ofstream(folder / "t.txt") << content(test::source_dir() / "config/text/sample.txt").substr(0, 3000);
  const std::vector<std::string> args{"report", model.string(), "--arm", "int8_per_channel_weight_only,name=int8 <b>", "--arm", "kv=fp8,name=kv", "--output", folder / "r", "--text", folder / "t.txt", "--runs", "2", "--concurrency", "1,2",
                                      "--batches", "2", "--input-len", "16", "--output-len", "8", "--context", "256", "--kl-mean-fail", "5", "--task-tokens", "8"};
  const TestJson r = json_of(args);
  ASSERT_EQ(r["arms"].size(), 3u);
  EXPECT_EQ(r["arms"][0]["name"], "bf16");
  for (const TestJson& a : r["arms"]) {
    EXPECT_EQ(a["levels"].size(), 2u);
    EXPECT_EQ(a["rounds"], 2);
    EXPECT_GT(a["kv_tokens"].get<int>(), 0);
    for (const TestJson& l : a["levels"]) {
      EXPECT_LE(l["tok_s"]["low"].get<double>(), l["tok_s"]["value"].get<double>());
      EXPECT_EQ(l.contains("tok_s_ratio"), a["name"] != "bf16");
    }
    EXPECT_TRUE(a["quality"].contains("ppl"));
    EXPECT_EQ(a["quality"]["tools"]["of"], 36);
    EXPECT_EQ(a["quality"].contains("kl_mean"), a["name"] != "bf16");
    EXPECT_FALSE(a["format"].empty());
  }
  EXPECT_LT(r["arms"][1]["weights_bytes"].get<double>(), r["arms"][0]["weights_bytes"].get<double>());
  EXPECT_EQ(r["arms"][2]["kv"]["bytes_per_token"].get<int>() * 2, r["arms"][0]["kv"]["bytes_per_token"].get<int>());
  EXPECT_EQ(r["record"]["model"]["sha256"].get<std::string>().size(), 64u);

  const std::string page = content(folder / "r/report.html");
  EXPECT_NE(page.find("int8 &lt;b&gt;"), std::string::npos) << "names are text";
  EXPECT_EQ(page.find("int8 <b>"), std::string::npos);
  EXPECT_EQ(page.find("src="), std::string::npos) << "no outside resource";
  for (std::size_t at = page.find("http"); at != std::string::npos; at = page.find("http", at + 1)) EXPECT_EQ(page.compare(at, 26, "http://www.w3.org/2000/svg"), 0);
  for (const char* file : {"report.md", "report.json", "speed.svg", "answers.svg", "memory.svg"}) EXPECT_FALSE(content(folder.path() / "r" / file).empty()) << file;

  // Again: nothing is measured twice, and the report agrees with itself. One piece less: that one alone is made.
  std::vector<std::string> again = args;
  again.insert(again.end(), {"--against", folder / "r/report.json"});
  fs::copy(folder / "r/report.json", folder / "first.json");
  again.back() = folder / "first.json";
  const test::Outcome o = test::run(again);
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.err.find("measurements are there already"), std::string::npos) << o.err;
  EXPECT_NE(o.out.find("figures agree"), std::string::npos) << o.out;
  fs::remove(folder / "r/pieces/tasks-kv.json");
  std::vector<std::string> third = args;
  const test::Outcome p = test::run(third);
  EXPECT_NE(p.err.find("tasks kv"), std::string::npos) << p.err;
  EXPECT_EQ(p.err.find("speed"), std::string::npos) << p.err;
  // A changed workload is another measurement.
  third[static_cast<std::size_t>(std::find(third.begin(), third.end(), "--output-len") - third.begin()) + 1] = "9";
  EXPECT_NE(test::run(third).err.find("speed bf16"), std::string::npos);
}

TEST(Report, AnArmThatCannotBeLoadedIsSaidAtOnce) {
  const auto model = test::fixture("tiny-qwen3");
  if (model.empty()) GTEST_SKIP() << "no fixture";
  const test::TemporaryFolder folder;
  for (const auto& [arm, part] : std::vector<std::pair<std::string, std::string>>{{"awq", "E105"}, {"path=/nowhere", "nowhere"}, {"kvv=fp8", "kvv"}, {"int9", "int9"}, {"fp8_per_channel,,", "neither"}}) {
    const test::Outcome o = test::run({"report", model.string(), "--arm", arm, "--output", folder / "r"});
    EXPECT_NE(o.code, 0);
    EXPECT_NE(o.err.find(part), std::string::npos) << o.err;
  }
  EXPECT_NE(test::run({"report", model.string(), "--arm", "fp8", "--arm", "fp8", "--output", folder / "r"}).err.find("two arms"), std::string::npos);
}

// Made-up weights: a config.json is enough, arms may be in formats that no load makes, and what does not go together is said.
TEST(Report, MadeUpWeightsGiveSpeedAndMemory) {
  const auto model = test::fixture("tiny-qwen3");
  if (model.empty()) GTEST_SKIP() << "no fixture";
  const test::TemporaryFolder folder;
  std::filesystem::create_directory(folder / "m");
  std::filesystem::copy_file(model / "config.json", folder / "m/config.json");
  const test::Outcome o = test::run({"report", folder / "m", "--load-format", "dummy", "--arm", "format=gptq,name=int4", "--runs", "1", "--batches", "2", "--concurrency", "1", "--input-len", "8", "--output-len", "4",
                                     "--device", "cpu", "--output", folder / "r", "--json"});
  ASSERT_EQ(o.code, 0) << o.err;
  const Json doc = Json::parse(o.out);
  ASSERT_EQ(doc["arms"].size(), 2u);
  EXPECT_LT(doc["arms"][1]["weights_bytes"].get<double>(), 0.6 * doc["arms"][0]["weights_bytes"].get<double>());
  EXPECT_GT(doc["arms"][1]["levels"][0]["tok_s"]["value"].get<double>(), 0);
  EXPECT_NE(doc["no_quality"].get<std::string>(), "");
  const auto refused = [&](std::vector<std::string> args, const char* why) {
    args.insert(args.begin(), "report");
    args.insert(args.end(), {"--device", "cpu", "--output", folder / "r2"});
    const test::Outcome r = test::run(args);
    EXPECT_EQ(r.code, 2);
    EXPECT_NE(r.err.find(why), std::string::npos) << r.err;
  };
  refused({"--shape", "qwen3-4b", "--arm", "kv=fp8"}, "add --load-format dummy");
  refused({model.string(), "--arm", "format=gptq"}, "--format is for made-up weights");
  refused({"--load-format", "dummy", "--shape", "qwen3-5b"}, "no shape is called");
  refused({folder / "m", "--load-format", "dummy", "--arm", "format=gtpq"}, "arm format=gtpq cannot be loaded");
}

TEST(Bench, ThroughputAndOverHttpAnswerEveryRequest) {
  const auto model = test::fixture("tiny-qwen3");
  if (model.empty()) GTEST_SKIP() << "no fixture";
  const std::vector<std::string> load{"--num-prompts", "12", "--random-input-len", "24", "--random-output-len", "6", "--max-concurrency", "3", "--save-detailed"};
  std::vector<std::string> in_process{"bench", "throughput", model.string()}, over_http{"bench", "serve", model.string()};
  in_process.insert(in_process.end(), load.begin(), load.end());
  over_http.insert(over_http.end(), load.begin(), load.end());
  for (const auto& args : {in_process, over_http}) {
    const TestJson b = json_of(args);
    EXPECT_EQ(b["completed"], 12);
    EXPECT_EQ(b["failed"], 0);
    EXPECT_EQ(b["total_input_tokens"], 12 * 24);
    EXPECT_EQ(b["total_output_tokens"], 12 * 6);
    EXPECT_EQ(b["ttfts"].size(), 12u);
    EXPECT_GT(b["output_throughput"].get<double>(), 0);
    EXPECT_LE(b["median_ttft_ms"].get<double>(), b["p99_ttft_ms"].get<double>());
  }
  const TestJson levels = json_of({"bench", "serve", model.string(), "--method", "articles", "--concurrency", "1,3", "--input-len", "16", "--output-len", "5", "--batches", "3"});
  ASSERT_EQ(levels["levels"].size(), 2u);
  EXPECT_EQ(levels["levels"][1]["output_tokens"], 2 * 3 * 5);
  EXPECT_EQ(levels["levels"][1]["cached_tokens"], 0);
  EXPECT_EQ(levels["levels"][0]["output_tok_s_batches"].size(), 2u);
  EXPECT_EQ(test::run({"bench", "serve", "--base-url", "http://127.0.0.1:9", "--num-prompts", "1"}).code, 7);
  EXPECT_EQ(test::run({"bench", "serve"}).code, 2);
}

// ---- calibrate-kv ----------------------------------------------------------------------------------

// E4M3 by its definition: three bits of mantissa, smallest exponent -6, largest value 448, ties to even.
double e4m3(double x) {
  const double a = std::fabs(x);
  if (a == 0) return 0;
  const double step = std::exp2(std::max(std::floor(std::log2(a)), -6.0) - 3);
  return std::copysign(std::min(448.0, std::nearbyint(a / step) * step), x);
}

// The same model with values c times as large and output projections 1/c: exactly the same function, since c is a power of two.
void scale_values(const fs::path& from, const fs::path& to, double c) {
  fs::create_directories(to);
  const auto checkpoint = Checkpoint::open(from);
  for (const auto& e : fs::directory_iterator(from))
    if (e.path().extension() == ".json" && e.path().filename() != "golden.json") fs::copy_file(e.path(), to / e.path().filename());
  std::vector<SafetensorsEntry> entries;
  for (const Tensor& t : checkpoint->tensors()) entries.push_back({t.name, dtype_name(t.dtype), t.shape});
  SafetensorsWriter out(to / "model.safetensors", entries);
  for (const Tensor& t : checkpoint->tensors()) {
    const auto bytes = checkpoint->data(t);
    const double factor = t.name.ends_with("v_proj.weight") ? c : t.name.ends_with("o_proj.weight") ? 1 / c : 1;
    std::vector<std::uint16_t> values(bytes.size() / 2);
    std::memcpy(values.data(), bytes.data(), bytes.size());
    for (std::uint16_t& v : values) {
      const std::uint32_t bits = std::uint32_t{v} << 16;
      float x;
      std::memcpy(&x, &bits, 4);
      v = bf16_from_float(static_cast<float>(x * factor));
    }
    out.write(std::as_bytes(std::span(values)));
  }
  out.finish();
}

struct Values final : RunObserver {
  int heads = 0, dim = 0;
  std::vector<float> v;
  void keys_values(int, const float*, const float* values, std::int64_t rows, std::int64_t stride) override {
    for (std::int64_t r = 0; r < rows; ++r) v.insert(v.end(), values + r * stride, values + r * stride + heads * dim);
  }
};

// Values far below E4M3's smallest normal number lose bits at scale 1. Rounding noise adds up to a divergence in proportion to its
// power: KL = a * (noise of V) + b, where b is the noise of K, which no scale of V changes. Two sizes of V give a; b is what calibration
// leaves at the first size, less the noise that V still has. The third size must gain what they say.
TEST(CalibrateKv, AModelWithSmallValuesGainsByTheNoiseItLoses) {
  const auto model = test::fixture("tiny-qwen3");
  if (model.empty()) GTEST_SKIP() << "no fixture";
  const auto golden = test::Golden::read(model).json;
  const std::string ids = test::ids_text(golden["eval_ids"], 400);
  Values seen;
  {
    EngineOptions o;
    o.model = model;
    o.exact = true;
    o.threads = 1;
    o.plugins.builtin_dir = test::binary_dir() / "bin/plugins";
    o.need_tokenizer = false;
    const auto engine = Engine::load(o);
    seen.heads = static_cast<int>(engine->config().num_kv_heads);
    seen.dim = static_cast<int>(engine->config().head_dim);
    const auto all = golden["eval_ids"].get<std::vector<std::int32_t>>();
    engine->observe(std::span(all).first(400), seen);
  }
  double power = 0;
  for (const float x : seen.v) power += static_cast<double>(x) * x;
  const double rms = std::sqrt(power / static_cast<double>(seen.v.size()));
  // Noise over signal of V at scale s, when V is c times itself.
  const auto noise = [&](double c, double s) {
    double error = 0;
    for (const float x : seen.v) error += std::pow(e4m3(x * c / s) * s - x * c, 2);
    return error / (power * c * c);
  };
  const test::TemporaryFolder folder;
  double n[3], kl[3], after[3];
  for (int i = 0; i < 3; ++i) {
    const double c = std::exp2(-std::round(std::log2(rms)) - 7 - i);  // rms about 2^-7, 2^-8, 2^-9
    const std::string at = folder / ("m" + std::to_string(i));
    scale_values(model, at, c);
    const TestJson j = json_of({"calibrate-kv", at, "--prompt-ids", ids, "--exact", "--dry-run"});
    n[i] = noise(c, 1);
    kl[i] = j["scale_one"]["kl_mean"];
    after[i] = j["calibrated"]["kl_mean"];
    EXPECT_FALSE(j.contains("written"));
  }
  // The calibrated noise, of the largest value at 448; every layer has its own, so this one is close and not exact.
  float largest = 0;
  for (const float x : seen.v) largest = std::max(largest, std::fabs(x));
  const double least = noise(1, largest / 448), a = (kl[1] - kl[0]) / (n[1] - n[0]), b = after[0] - a * least;
  EXPECT_GT(b, 0);
  const double derived = (a * n[2] + b) / (a * least + b), measured = kl[2] / after[2];
  EXPECT_GT(derived, 5);
  EXPECT_NEAR(measured / derived, 1, 0.35) << "derived " << derived << ", measured " << measured << "; KL " << kl[0] << " " << kl[1] << " " << kl[2] << " -> " << after[2];
  EXPECT_LT(std::fabs(after[0] / after[2] - 1), 0.2) << "calibrated, the size of V does not matter";
}

TEST(CalibrateKv, WritesWhatAnFp8CacheReadsAndNothingElseChanges) {
  const auto model = test::fixture("tiny-qwen3");
  if (model.empty()) GTEST_SKIP() << "no fixture";
  const std::string ids = test::ids_text(test::Golden::read(model).json["eval_ids"], 200);
  const test::TemporaryFolder folder;
  const fs::path copy = folder.path() / "in-place";
  fs::copy(model, copy, fs::copy_options::recursive);
  for (const auto& e : fs::recursive_directory_iterator(copy)) fs::permissions(e.path(), fs::perms::owner_all, fs::perm_options::add);
  const TestJson beside = json_of({"calibrate-kv", model.string(), "--prompt-ids", ids, "--strategy", "head", "--output", folder / "out"});
  const TestJson inside = json_of({"calibrate-kv", copy.string(), "--prompt-ids", ids});
  EXPECT_EQ(content(model / "model.safetensors"), content(copy / "model.safetensors"));
  EXPECT_EQ(content(model / "config.json"), content(copy / "config.json.before-kv"));
  for (const std::string& at : {folder / "out", copy.string()}) {
    const TestJson i = json_of({"inspect", at});
    EXPECT_EQ(i["kv"]["plugin"], "kv_fp8") << at;
    EXPECT_EQ(i["kv"]["scale_source"], "checkpoint");
    const TestJson run = json_of({"run", at, "--prompt-ids", "1,2,3", "--max-tokens", "4"});
    EXPECT_EQ(run["outputs"][0]["token_ids"].size(), 4u);
  }
  // The largest value over 448, in the file as it lies.
  const auto scales = Checkpoint::open(copy);
  const Tensor* k = scales->find("model.layers.0.self_attn.k_scale");
  ASSERT_NE(k, nullptr);
  float scale;
  std::memcpy(&scale, scales->data(*k).data(), 4);
  EXPECT_FLOAT_EQ(scale, inside["layers"][0]["k_amax"].get<float>() / 448);
  const auto written = Checkpoint::open(folder / "out");
  const Tensor* heads = written->find("model.layers.1.self_attn.v_scale");
  ASSERT_NE(heads, nullptr);
  EXPECT_EQ(heads->shape, (std::vector<std::int64_t>{2, 1, 1}));
  EXPECT_LE(beside["calibrated"]["kl_mean"].get<double>(), 0.01);
  // Once more over its own, and never over somebody else's.
  json_of({"calibrate-kv", copy.string(), "--prompt-ids", ids});
  if (const auto own = test::fixture("ct-fp8-static-kv"); !own.empty()) {
    const test::Outcome o = test::run({"calibrate-kv", own.string(), "--prompt-ids", ids, "--output", folder / "o2"});
    EXPECT_EQ(o.code, 2);
    EXPECT_NE(o.err.find("scales of its own"), std::string::npos) << o.err;
  }
  const test::Outcome o = test::run({"calibrate-kv", model.string(), "--prompt-ids", ids, "--output", folder / "out"});
  EXPECT_EQ(o.code, 2);
}

}  // namespace
}  // namespace qengine
