// The table that a plugin gets from the host.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>

#include "core/base/thread_pool.hpp"
#include "core/plugin_host/call.hpp"
#include "core/plugin_host/host_table.hpp"
#include "tests/support/memory_checkpoint.hpp"

namespace qengine {
namespace {

struct Services : ::testing::Test {
  PluginServices services{"tester"};
  const qe_host& h = *services.table();
};

TEST_F(Services, PathsReachEveryValueWhateverItsKey) {
  const Json quant = Json::parse(R"({"bits": 4, "sym": true, "f": 2.5, "whole": 4.0, "huge": 1e30, "none": null, "text": "x\u0000y",
    "groups": {"g.0": {"weights": {"num_bits": 8}}, "b": 1}, "list": ["a", {"deep": 7}],
    "dynamic": {"+:.*\\.q_proj": {"bits": 2}, "a.b": {"c": 1}, "a": {"b.c": 2}}})");
  const Json options = Json::parse(R"({"speed": "fast"})"), model = Json::parse(R"({"hidden_size": 64, "text_config": {"x": 1}})"),
             gguf = Json::parse(R"({"general.architecture": "llama", "llama.block_count": 30})");
  qe_cfg_s cfg{&quant, &options, &model, &gguf};

  const auto number = [&](const char* path) {
    std::int64_t v = -99;
    return h.cfg_i64(h.self, &cfg, path, &v) ? v : -99;
  };
  EXPECT_EQ(number("bits"), 4);
  EXPECT_EQ(number("sym"), 1);
  EXPECT_EQ(number("f"), -99);
  EXPECT_EQ(number("whole"), 4);
  EXPECT_EQ(number("huge"), -99);
  EXPECT_EQ(number("none"), -99);
  EXPECT_EQ(number("groups.g.0.weights.num_bits"), 8);
  EXPECT_EQ(number("groups.#0.weights.num_bits"), 8);
  EXPECT_EQ(number("groups.#1"), 1);
  EXPECT_EQ(number("groups.#2"), -99);
  EXPECT_EQ(number("list.#1.deep"), 7);
  EXPECT_EQ(number("dynamic.+:.*\\.q_proj.bits"), 2);
  EXPECT_EQ(number("dynamic.a.b.c"), 2) << "the shorter first key is tried first";
  EXPECT_EQ(number("model.hidden_size"), 64);
  EXPECT_EQ(number("model.text_config.x"), 1);
  EXPECT_EQ(number("gguf.llama.block_count"), 30);
  EXPECT_EQ(number("bits.x"), -99);
  EXPECT_EQ(number(""), -99);
  EXPECT_EQ(number("."), -99);

  double d = 0;
  EXPECT_TRUE(h.cfg_f64(h.self, &cfg, "f", &d) && d == 2.5);
  EXPECT_TRUE(h.cfg_f64(h.self, &cfg, "bits", &d) && d == 4);
  qe_str s{};
  ASSERT_TRUE(h.cfg_str(h.self, &cfg, "options.speed", &s));
  EXPECT_EQ(std::string(s.p, s.n), "fast");
  ASSERT_TRUE(h.cfg_str(h.self, &cfg, "text", &s));
  EXPECT_EQ(s.n, 3u);
  EXPECT_FALSE(h.cfg_str(h.self, &cfg, "bits", &s));
  EXPECT_EQ(h.cfg_size(h.self, &cfg, "groups"), 2);
  EXPECT_EQ(h.cfg_size(h.self, &cfg, "list"), 2);
  EXPECT_EQ(h.cfg_size(h.self, &cfg, "bits"), 0);
  EXPECT_EQ(h.cfg_size(h.self, &cfg, "none"), -1);
  EXPECT_EQ(h.cfg_size(h.self, &cfg, "nothing"), -1);
  EXPECT_EQ(h.cfg_size(h.self, &cfg, "options"), 1);
  ASSERT_TRUE(h.cfg_key(h.self, &cfg, "dynamic", 0, &s));
  EXPECT_EQ(std::string(s.p, s.n), "+:.*\\.q_proj");
  EXPECT_FALSE(h.cfg_key(h.self, &cfg, "dynamic", 3, &s));
  EXPECT_FALSE(h.cfg_key(h.self, &cfg, "list", 0, &s));

  qe_cfg_s empty{};
  EXPECT_EQ(h.cfg_size(h.self, &empty, "bits"), -1);
  EXPECT_EQ(h.cfg_size(h.self, &empty, "options.speed"), -1);
  EXPECT_EQ(h.cfg_size(h.self, nullptr, "bits"), -1);
}

TEST_F(Services, MemoryIsAlignedZeroCostToCountAndGivenBackWhole) {
  qe_device cpu{};
  cpu.struct_size = sizeof cpu;
  cpu.kind = QE_CPU;
  std::vector<void*> blocks;
  std::uint64_t sum = 0;
  for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{63}, std::uint64_t{4097}, std::uint64_t{3} << 20}) {
    void* p = nullptr;
    ASSERT_EQ(h.alloc(h.self, &cpu, bytes, 16, QE_MEM_WEIGHT, &p), QE_OK);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % 64, 0u);
    std::memset(p, 1, bytes);
    sum += bytes;
    blocks.push_back(p);
  }
  EXPECT_EQ(services.held(QE_MEM_WEIGHT), sum);
  EXPECT_EQ(services.held(QE_MEM_PERSIST), 0u);
  for (void* p : blocks) h.free(h.self, &cpu, p);
  EXPECT_EQ(services.held(QE_MEM_WEIGHT), 0u);
  EXPECT_EQ(services.peak(QE_MEM_WEIGHT), sum);
  h.free(h.self, &cpu, nullptr);
  int stranger = 0;
  h.free(h.self, &cpu, &stranger);  // said in the log, nothing else

  void* p = nullptr;
  EXPECT_EQ(h.alloc(h.self, &cpu, 64, 3, QE_MEM_WEIGHT, &p), QE_E_ARGUMENT);
  EXPECT_EQ(h.alloc(h.self, &cpu, 64, 64, 9, &p), QE_E_ARGUMENT);
  EXPECT_EQ(h.alloc(h.self, &cpu, std::uint64_t{1} << 62, 64, QE_MEM_WEIGHT, &p), QE_E_OOM);
  cpu.kind = QE_CUDA;
  EXPECT_EQ(h.alloc(h.self, &cpu, 64, 64, QE_MEM_WEIGHT, &p), QE_E_DEVICE);
}

TEST_F(Services, TensorsAreWholeWhileLoadingAndSmallBefore) {
  test::MemoryCheckpoint c;
  c.add("big", QE_U8, {1024, 2048}, std::vector<std::uint8_t>(2 << 20, 3));
  c.add("odd", QE_F32, {3}, std::vector<float>{1, 2, 3}, /*odd=*/true);
  c.add("scalar", QE_BF16, {}, std::vector<std::uint16_t>{0x3f80});
  c.add("five", QE_U8, {1, 1, 1, 1, 1}, std::vector<std::uint8_t>{1});
  qe_ckpt_s ckpt;
  ckpt.checkpoint = &c;
  ckpt.record = true;
  const auto get = [&](const char* name, qe_tensor& t) { return h.tensor(h.self, &ckpt, {name, std::strlen(name)}, &t); };
  qe_tensor t{};
  ASSERT_EQ(get("big", t), QE_OK);
  EXPECT_EQ(t.data, nullptr);
  EXPECT_EQ(t.rank, 2);
  EXPECT_EQ(t.dim[1], 2048);
  EXPECT_EQ(t.stride[0], 2048);
  EXPECT_EQ(t.stride[1], 1);
  ckpt.loading = true;
  ASSERT_EQ(get("big", t), QE_OK);
  EXPECT_NE(t.data, nullptr);
  ASSERT_EQ(get("odd", t), QE_OK);
  ASSERT_EQ(reinterpret_cast<std::uintptr_t>(t.data) % 4, 0u);
  EXPECT_EQ(static_cast<float*>(t.data)[2], 3.0f);
  ASSERT_EQ(get("scalar", t), QE_OK);
  EXPECT_EQ(t.rank, 0);
  EXPECT_EQ(get("five", t), QE_E_UNSUPPORTED);
  EXPECT_EQ(get("gone", t), QE_E_CHECKPOINT);
  EXPECT_TRUE(ckpt.found.contains("odd"));
  EXPECT_TRUE(ckpt.missed.contains("gone"));
  EXPECT_EQ(h.tensor(h.self, nullptr, {"x", 1}, &t), QE_E_ARGUMENT);
}

TEST_F(Services, ThreadsComeFromTheCallAndCarryItsNote) {
  std::atomic<int> items{0}, noted{0};
  struct Arg {
    std::atomic<int>*items, *noted;
  } arg{&items, &noted};
  const auto body = [](void* a, std::int64_t) {
    auto& x = *static_cast<Arg*>(a);
    ++*x.items;
    if (current_call && std::string_view(current_call->layer) == "layer 5") ++*x.noted;
  };
  h.parallel_for(h.self, 10, body, &arg);  // outside of any call: this thread
  EXPECT_EQ(items, 10);
  EXPECT_EQ(noted, 0);
  EXPECT_EQ(h.threads(h.self), 1);

  ThreadPool pool(3);
  Call call{"tester", "run", "layer 5", &pool};
  const CallScope scope(call);
  EXPECT_EQ(h.threads(h.self), 3);
  h.parallel_for(h.self, 100, body, &arg);
  EXPECT_EQ(items, 110);
  EXPECT_EQ(noted, 100);

  std::atomic<bool> stop{true};
  EXPECT_FALSE(h.cancelled(h.self));
  call.cancel = &stop;
  EXPECT_TRUE(h.cancelled(h.self));
}

TEST_F(Services, PatternsAreRememberedForTheReport) {
  CallFindings findings;
  Call call{"tester", "plan", "", nullptr, nullptr, &findings};
  const CallScope scope(call);
  const auto match = [&](std::string_view p, std::string_view n) { return h.match(h.self, {p.data(), p.size()}, {n.data(), n.size()}); };
  EXPECT_FALSE(match("re:.*lm_haed", "lm_head"));
  EXPECT_FALSE(match("*q_proj", "k_proj"));
  EXPECT_TRUE(match("*q_proj", "q_proj"));
  EXPECT_FALSE(match("re:([", "q_proj"));
  EXPECT_FALSE(findings.patterns.at("re:.*lm_haed"));
  EXPECT_TRUE(findings.patterns.at("*q_proj"));
  EXPECT_EQ(findings.bad_pattern, "re:([");
}

}  // namespace
}  // namespace qengine
