// The client of bench serve against a server that says what the test wants.
#include "core/load_test/openai_client.hpp"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "core/base/error.hpp"
#include "core/server/http.hpp"

namespace qengine {
namespace {

TEST(ParseUrl, TakesWhatPeopleWriteAndRefusesTheRest) {
  const Url a = parse_url("http://localhost:8000/v1/");
  EXPECT_EQ(a.host, "localhost");
  EXPECT_EQ(a.port, "8000");
  EXPECT_EQ(a.path, "/v1");
  EXPECT_FALSE(a.tls);
  const Url b = parse_url("https://api.example.com");
  EXPECT_TRUE(b.tls);
  EXPECT_EQ(b.port, "443");
  EXPECT_EQ(parse_url("http://[::1]:80").host, "::1");
  EXPECT_EQ(parse_url("10.0.0.1:81").port, "81");
  for (const char* bad : {"", "ftp://x", "http://", "http://x:y", "http://a b", "http://u@h"}) EXPECT_THROW(parse_url(bad), Error) << bad;
}

TEST(EventStream, CountsTheSameHoweverTheBytesAreCut) {
  const std::string body =
      ": ping\n\ndata: {\"choices\":[{\"text\":\"\"}]}\n\ndata: {\"choices\":[{\"text\":\"a\\nb\"}],\"usage\":null}\r\n\r\n"
      "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\ndata: [DONE]\n\n";
  for (std::size_t step = 1; step <= body.size(); step += step < 8 ? 1 : 13) {
    for (const bool chat : {false, true}) {
      EventStream s(chat);
      int events = 0;
      bool finished = false;
      for (std::size_t i = 0; i < body.size(); i += step) {
        const auto seen = s.push(std::string_view(body).substr(i, step));
        events += seen.events;
        finished |= seen.finished;
        EXPECT_EQ(seen.error, "");
      }
      EXPECT_EQ(events, chat ? 3 : 2) << step;
      EXPECT_TRUE(finished);
      EXPECT_EQ(s.prompt_tokens(), 9);
      EXPECT_EQ(s.output_tokens(), 2);
      EXPECT_EQ(s.cached_tokens(), 4);
    }
  }
  EventStream s(false);
  EXPECT_NE(s.push("data: {\"error\":{\"message\":\"broken\"}}\n").error, "");
  EXPECT_NE(s.push("data: nonsense\n").error, "");
}

class Scripted : public ::testing::Test {
 protected:
  Scripted()
      : server_({.port = 0}, [](const http::Request&) { return std::nullopt; },
                [this](http::Request r, std::shared_ptr<http::Exchange> x) { answer(std::move(r), std::move(x)); }) {
    server_.start();
  }
  ~Scripted() override { server_.stop(); }

  void answer(http::Request r, std::shared_ptr<http::Exchange> x) {
    if (r.path == "/v1/models") return x->respond({200, {{"Content-Type", "application/json"}}, "{\"data\":[{\"id\":\"m\"}]}"});
    const auto body = nlohmann::json::parse(r.body, nullptr, false);
    if (body["prompt"] == "refuse") return x->respond({429, {{"Content-Type", "application/json"}}, "{\"error\":{\"message\":\"queue is full\"}}"});
    EXPECT_EQ(r.header("authorization"), "Bearer k");
    EXPECT_EQ(body["model"], "m");
    EXPECT_EQ(body["stream"], true);
    EXPECT_EQ(body["ignore_eos"], true);
    EXPECT_EQ(body["top_k"], 3);
    const int n = body["max_tokens"];
    std::thread([x, n, cut = body["prompt"] == "cut"] {
      x->start(200, {{"Content-Type", "text/event-stream"}});
      for (int i = 0; i < n; ++i) {
        x->write("data: {\"choices\":[{\"text\":\"x\"}]}\n\n");
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      if (!cut) x->write("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":" + std::to_string(n) + "}}\n\ndata: [DONE]\n\n");
      x->finish();
    }).detach();
  }
  OpenAiClient::Options options(const std::string& url) {
    OpenAiClient::Options o;
    o.url = parse_url(url);
    o.model = "m";
    o.api_key = "k";
    o.ignore_eos = true;
    o.extra = {{"top_k", 3}};
    return o;
  }
  http::HttpServer server_;
};

TEST_F(Scripted, AnswersRefusalsAndBrokenStreamsAreToldApart) {
  OpenAiClient client(options(server_.address()));
  EXPECT_EQ(client.get("/v1/models").first, 200);
  std::vector<LoadRequest> r(40);
  for (std::size_t i = 0; i < r.size(); ++i) r[i].text = i == 3 ? "refuse" : i == 5 ? "cut" : "hello", r[i].output_tokens = 4;
  const LoadResult result = run_load(client, r, {.max_concurrency = 8});
  for (std::size_t i = 0; i < r.size(); ++i) {
    const RequestRecord& one = result.records[i];
    if (i == 3) EXPECT_EQ(one.error, "HTTP 429: queue is full");
    else if (i == 5) EXPECT_NE(one.error.find("[DONE]"), std::string::npos) << one.error;
    else {
      EXPECT_EQ(one.error, "");
      EXPECT_EQ(one.output_tokens, 4);
      EXPECT_EQ(one.prompt_tokens, 5);
      EXPECT_EQ(one.gaps.size(), 3u);
    }
  }
  EXPECT_LE(server_.connections(), 8u);  // they are used again
  EXPECT_GT(client.cpu_seconds(), 0);
}

TEST_F(Scripted, ManyStreamsAtOnce) {
  OpenAiClient client(options(server_.address()));
  std::vector<LoadRequest> r(400);
  for (auto& one : r) one.text = "hello", one.output_tokens = 20;
  const LoadResult result = run_load(client, r, {});
  for (const auto& one : result.records) ASSERT_EQ(one.error, "");
}

TEST_F(Scripted, CancellingEndsThemAll) {
  OpenAiClient client(options(server_.address()));
  std::vector<LoadRequest> r(5);
  for (auto& one : r) one.text = "hello", one.output_tokens = 1'000'000;  // a quarter of an hour each, if nobody stops them
  std::atomic<bool> stop{false};
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    stop = true;
  });
  const LoadResult result = run_load(client, r, {.stop = &stop});
  later.join();
  EXPECT_TRUE(result.interrupted);
  EXPECT_TRUE(result.records.empty());
  EXPECT_LT(result.duration, 60);
}

TEST(OpenAiClient, AServerThatIsNotThereIsAnErrorForEachRequest) {
  OpenAiClient::Options o;
  o.url = parse_url("http://127.0.0.1:9");
  OpenAiClient client(o);
  EXPECT_THROW(client.get("/v1/models"), Error);
  std::vector<LoadRequest> r(2);
  r[0].text = r[1].text = "x";
  for (const auto& one : run_load(client, r, {}).records) EXPECT_NE(one.error, "");
}

}  // namespace
}  // namespace qengine
