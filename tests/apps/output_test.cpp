// What comes out of stdout and stderr, exit codes, pipes and signals.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/paths.hpp"
#include "tests/support/program.hpp"

namespace qengine {
namespace {

using test::fixture;
using test::run;
using Json = nlohmann::ordered_json;

std::string model() { return fixture("tiny-qwen3").string(); }

std::vector<std::string> plus(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// The document, with what every document begins with checked. No NaN or Infinity passes this parser.
Json document(const std::vector<std::string>& args, const std::string& schema) {
  const auto o = run(plus(args, {"--json"}));
  EXPECT_EQ(o.code, 0) << o.err;
  const Json j = Json::parse(o.out, nullptr, false);
  EXPECT_TRUE(j.is_object()) << o.out;
  if (!j.is_object()) return Json::object();
  auto key = j.begin();
  EXPECT_EQ(key.key(), "schema");
  EXPECT_EQ(key.value(), schema);
  EXPECT_EQ((++key).key(), "version");
  EXPECT_EQ((++key).key(), "build");
  EXPECT_EQ(std::count(o.out.begin(), o.out.end(), '\n'), 1);
  return j;
}

void has(const Json& j, std::initializer_list<const char*> keys) {
  for (const char* k : keys) EXPECT_TRUE(j.contains(k)) << k << " in " << j.dump().substr(0, 300);
}

#define NEED_MODEL() \
  if (model().empty()) GTEST_SKIP() << "no tiny-qwen3 fixture"

TEST(Json, OfRun) {
  NEED_MODEL();
  const Json j = document({"run", "--model", model(), "--prompt-ids", "1,2,3", "--prompt-ids", "4,5", "--max-tokens", "4", "--temperature", "0", "--ignore-eos", "--logprobs", "2"}, "qengine.run/1");
  has(j, {"outputs", "timings", "memory", "layers"});
  ASSERT_EQ(j["outputs"].size(), 2u);
  has(j["outputs"][0], {"prompt_token_ids", "token_ids", "text", "finish_reason", "logprobs"});
  EXPECT_EQ(j["outputs"][1]["prompt_token_ids"], Json({4, 5}));
  EXPECT_EQ(j["outputs"][0]["token_ids"].size(), 4u);
  EXPECT_EQ(j["outputs"][0]["finish_reason"], "length");
  const Json& first = j["outputs"][0]["logprobs"][0];
  EXPECT_EQ(first["token_id"], first["top"][0]["token_id"]);  // greedy takes the best
  EXPECT_EQ(first["logprob"], first["top"][0]["logprob"]);
  has(j["timings"], {"load_s", "ttft_s", "prefill_tok_s", "decode_tok_s"});
  has(j["memory"], {"weights_bytes", "kv_bytes", "peak_rss_bytes"});
  has(j["layers"][0], {"name", "plugin", "scheme", "kernel", "tier", "bytes", "reason"});
}

// The file's pages are given back as its matrices are packed, so never all of both are resident: twice the weights would
// be twice the file and more. How near to one file it is, is measured and not yet what it should be: docs/performance.md.
TEST(Memory, WeightsAreNotHeldTwice) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizers' own memory is counted too";
#endif
  const char* named = std::getenv("QENGINE_SMOLLM2");
  const std::filesystem::path file = named ? std::filesystem::path(named) : test::source_dir() / ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  if (!std::filesystem::exists(file)) GTEST_SKIP() << "the model is not there: make run fetches it, or QENGINE_SMOLLM2 names it";
  const Json j = document({"run", "--model", file.string(), "--prompt-ids", "1,2,3", "--max-tokens", "16", "--temperature", "0", "--ignore-eos"}, "qengine.run/1");
  const double peak = j["memory"]["peak_rss_bytes"].get<double>(), size = double(std::filesystem::file_size(file));
  EXPECT_LT(peak, 1.75 * size);
  EXPECT_GT(peak, j["memory"]["weights_bytes"].get<double>()) << "less than the weights: not the peak";
}

TEST(Json, OfInspectAndPlugins) {
  NEED_MODEL();
  const Json j = document({"inspect", model()}, "qengine.inspect/1");
  has(j, {"model", "layers", "kv", "ignored_tensors", "unused_rules", "total_bytes"});
  has(j["model"], {"architecture", "params"});
  has(j["kv"], {"plugin", "dtype", "bytes_per_token", "scale_source"});
  EXPECT_EQ(j["kv"]["bytes_per_token"], 2 * 2 * 2 * 128 * 2);  // k and v, layers, heads, head_dim, bfloat16
  std::uint64_t sum = 0;
  for (const Json& l : j["layers"]) sum += l["bytes"].get<std::uint64_t>();
  EXPECT_LE(sum, j["total_bytes"].get<std::uint64_t>());
  EXPECT_GT(sum, j["total_bytes"].get<std::uint64_t>() * 9 / 10);

  const Json p = document({"plugin", "list"}, "qengine.plugin_list/1");
  has(p, {"plugins", "refused", "aliases"});
  ASSERT_GE(p["plugins"].size(), 2u);
  has(p["plugins"][0], {"id", "version", "abi", "path", "sha256", "trust", "methods", "capabilities"});
  EXPECT_EQ(run({"plugins"}).out, run({"plugin", "list"}).out);
  has(document({"plugin", "explain", model()}, "qengine.plugin_explain/1"), {"choice", "scores", "layers"});
  has(document({"plugin", "info", "bf16_ref"}, "qengine.plugin_info/1")["plugin"], {"id", "methods", "options", "license"});
}

TEST(Json, OfEvalAndBench) {
  NEED_MODEL();
  std::string ids = "5";
  for (int i = 0; i < 150; ++i) ids += "," + std::to_string(i * 37 % 1000);
  const Json p = document({"eval", "ppl", model(), "--prompt-ids", ids}, "qengine.eval_ppl/1");
  has(p, {"ppl", "nll_mean", "tokens", "documents", "method", "context", "corpus_sha256"});
  EXPECT_EQ(p["tokens"], 150);
  EXPECT_EQ(p["documents"][0]["tokens"], 150);
  const Json k = document({"eval", "kl", model(), "--reference", model(), "--prompt-ids", ids, "--exact"}, "qengine.eval_kl/1");
  has(k, {"kld", "same_top_p", "ppl_q", "ppl_base", "tokens", "verdict", "reasons"});
  has(k["kld"], {"mean", "median", "max", "p99", "p999"});
  EXPECT_LT(k["kld"]["mean"].get<double>(), 1e-9);
  EXPECT_EQ(k["same_top_p"], 1.0);
  EXPECT_EQ(k["verdict"], "pass");
  const Json b = document({"bench", "latency", model(), "--input-len", "4,8", "--output-len", "6", "--batch-size", "2", "--runs", "2", "--warmups", "1", "--threads", "2"}, "qengine.bench_latency/1");
  has(b, {"results", "read_bandwidth_bytes_s", "load_s", "peak_rss_bytes", "threads"});
  ASSERT_EQ(b["results"].size(), 2u);
  const Json& r = b["results"][1];
  has(r, {"input_len", "output_len", "batch_size", "runs", "prefill_tok_s", "decode_tok_s", "ttft_ms", "itl_ms", "bytes_per_token", "bandwidth_share"});
  has(r["decode_tok_s"], {"median", "p10", "p90"});
  EXPECT_EQ(r["input_len"], 8);
  const double steps = r["decode_tok_s"]["median"].get<double>() / 2;
  EXPECT_NEAR(r["bandwidth_share"].get<double>() / (r["bytes_per_token"].get<double>() * steps / b["read_bandwidth_bytes_s"].get<double>()), 1, 1e-6);
  EXPECT_EQ(b["valid"], true);
  // With one output token nothing is decoded: absent, never 0.
  const Json one = document({"bench", "latency", model(), "--input-len", "4", "--output-len", "1", "--batch-size", "1", "--num-iters", "1", "--num-iters-warmup", "0"}, "qengine.bench_latency/1");
  EXPECT_FALSE(one["results"][0].contains("decode_tok_s"));
  EXPECT_FALSE(one["results"][0].contains("bandwidth_share"));
  // A head of its own is read in place of the table that lookups use: 1024 rows of 256 in one byte and a scale instead of two bytes.
  const Json small = document({"bench", "latency", model(), "--quantize-lm-head", "int8", "--input-len", "4", "--output-len", "1", "--batch-size", "1", "--num-iters", "1", "--num-iters-warmup", "0"}, "qengine.bench_latency/1");
  EXPECT_EQ(one["results"][0]["bytes_per_token"].get<int>() - small["results"][0]["bytes_per_token"].get<int>(), 1024 * 256 - 1024 * 4);
}

// stdout holds the result and nothing else, however the prompt is given.
TEST(Run, TextComesOutAlone) {
  NEED_MODEL();
  const std::vector<std::string> flags{"--max-tokens", "5", "--temperature", "0", "--ignore-eos"};
  const Json j = document(plus({"run", model(), "--prompt", "The server"}, flags), "qengine.run/1");
  std::string text = j["outputs"][0]["text"];
  if (!text.ends_with('\n')) text += '\n';
  const auto flag = run(plus({"run", model(), "--prompt", "The server"}, flags));
  EXPECT_EQ(flag.out, text);
  EXPECT_NE(flag.err.find("tok/s"), std::string::npos) << flag.err;
  EXPECT_EQ(run(plus({"--model", model(), "--prompt", "The server"}, flags)).out, text);  // run is the default
  EXPECT_EQ(run({.args = plus({"run", model()}, flags), .input = "The server\n"}).out, text);
  EXPECT_EQ(run({.args = plus({"run", model(), "-"}, flags), .input = "The server"}).out, text);
  const auto quiet = run(plus({"run", model(), "--prompt", "The server", "--quiet"}, flags));
  EXPECT_EQ(quiet.out, text);
  EXPECT_EQ(quiet.err, "");
  const auto two = run(plus({"run", model(), "--prompt", "The server", "--prompt", "The server", "--quiet"}, flags));
  EXPECT_EQ(two.out, "==> prompt 1 <==\n" + text + "\n==> prompt 2 <==\n" + text);
}

TEST(Output, GoesToTheFileThatIsNamed) {
  const std::filesystem::path file = std::filesystem::path(::testing::TempDir()) / ("result" + std::to_string(getpid()));
  const auto o = run({"plugin", "list", "--json", "--output", file.string()});
  EXPECT_EQ(o.code, 0);
  EXPECT_EQ(o.out, "");
  std::ifstream in(file);
  EXPECT_EQ(Json::parse(in, nullptr, false)["schema"], "qengine.plugin_list/1");
  std::filesystem::remove(file);
  const auto bad = run({"plugin", "list", "--output", "/nonexistent/x"});
  EXPECT_EQ(bad.code, 2);
  EXPECT_EQ(bad.err, "E108 cannot write /nonexistent/x: No such file or directory\n");
}

TEST(Run, AnEmptyPromptIsRefused) {
  NEED_MODEL();
  const auto o = run({"run", model()});  // stdin is /dev/null
  EXPECT_EQ(o.code, 2);
  EXPECT_EQ(o.err.substr(0, 24), "E101 the prompt is empty");
}

TEST(Pipes, AReaderThatHasGoneEndsItQuietly) {
  for (const std::vector<std::string>& args : {std::vector<std::string>{"--help"}, {"help", "config"}, {"plugin", "list", "--json"}}) {
    const auto o = run({.args = args, .close_stdout = true});
    EXPECT_EQ(o.code, 0) << args[0];
    EXPECT_EQ(o.err, "");
  }
}

TEST(Pipes, AnOutputThatCannotBeWrittenIsSaid) {
  const std::string program = (test::binary_dir() / "bin/qengine").string();
  const std::pair<const char*, const char*> all[] = {{" >/dev/full", "E108 cannot write to stdout: No space left on device"}, {" >&-", "E108 cannot write to stdout: Bad file descriptor"}};
  for (const auto& [redirect, says] : all)
    for (const char* args : {" --version", " help config", " plugin list --json"}) {
      const auto o = run({.args = {"-c", program + args + redirect}, .program = "/bin/sh"});
      EXPECT_EQ(o.code, 2) << args << redirect;
      EXPECT_NE(o.err.find(says), std::string::npos) << o.err;
    }
}

// Requests that still run when their command fails: they end before what their answers are written to is gone.
TEST(Run, AFailureInTheMiddleOfAnswersEndsThemFirst) {
  NEED_MODEL();
  std::string args = (test::binary_dir() / "bin/qengine").string() + " run " + model() + " --max-tokens 900 --temperature 0 --ignore-eos";
  for (int i = 0; i < 8; ++i) args += " --prompt 'The server'";
  for (int i = 0; i < 3; ++i) {
    const auto full = run({.args = {"-c", args + " >/dev/full"}, .program = "/bin/sh"});
    EXPECT_EQ(full.code, 2);
    EXPECT_EQ(full.err.substr(0, 5), "E108 ");
    std::string ids = "1";
    for (int j = 0; j < 200; ++j) ids += ",1";
    const auto one_too_long = run({.args = {"-c", args + " --prompt-ids " + ids}, .program = "/bin/sh"});
    EXPECT_NE(one_too_long.code, 0);
    EXPECT_EQ(one_too_long.err.substr(0, 5), "E502 ");
    EXPECT_EQ(one_too_long.out, "");
  }
}

TEST(Signals, AnInterruptPrintsWhatThereIsAndExits130) {
  NEED_MODEL();
  // Enough work that the signal comes while there is some left.
  std::vector<std::string> args{"run", model(), "--max-tokens", "900", "--temperature", "0", "--ignore-eos"};
  for (int i = 0; i < 16; ++i) args.insert(args.end(), {"--prompt", "The server"});
  const auto o = run({.args = args, .signal_after_output = SIGINT});
  EXPECT_EQ(o.code, 130) << o.err;
  ASSERT_FALSE(o.out.empty());
  EXPECT_EQ(o.out.back(), '\n');
  EXPECT_EQ(run({.args = args, .signal_after_output = SIGTERM}).code, 143);
}

}  // namespace
}  // namespace qengine
