// The HTTP layer against a raw socket: what a well-behaved client library would never send.
#include "core/server/http.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "core/base/error.hpp"

namespace qengine::http {
namespace {

class Client {
 public:
  explicit Client(int port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(static_cast<std::uint16_t>(port));
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
    timeval t{10, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
  }
  ~Client() { leave(); }
  void leave() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  void send(std::string_view s) {
    while (!s.empty()) {
      const auto n = ::send(fd_, s.data(), s.size(), MSG_NOSIGNAL);
      if (n <= 0) return;
      s.remove_prefix(static_cast<std::size_t>(n));
    }
  }
  // Until `end` was seen or the server closed.
  std::string read_until(std::string_view end) {
    std::string out;
    char c[4096];
    while (out.find(end) == std::string::npos) {
      const auto n = recv(fd_, c, sizeof c, 0);
      if (n <= 0) break;
      out.append(c, static_cast<std::size_t>(n));
    }
    return out;
  }

 private:
  int fd_;
};

struct Fixture : ::testing::Test {
  std::atomic<int> seen{0}, closed{0};
  std::unique_ptr<HttpServer> server;
  void open(Options o = {}) {
    o.port = 0;
    server = std::make_unique<HttpServer>(
        o, [](const Request& r) -> std::optional<Response> {
          if (r.path == "/refused") return Response{403, {}, "no"};
          if (r.path == "/busy") std::this_thread::sleep_for(std::chrono::milliseconds(1500));
          return std::nullopt;
        },
        [this](Request r, std::shared_ptr<Exchange> x) {
          ++seen;
          if (r.path == "/drop") return;
          if (r.path == "/hang") {
            x->on_close([this] { ++closed; });
            hanging = std::move(x);
            return;
          }
          if (r.path == "/stream") {
            x->start(200, {{"Content-Type", "text/plain"}});
            for (int i = 0; i < 3; ++i) x->write("part" + std::to_string(i));
            x->finish();
            return;
          }
          x->respond({200, {{"X-Path", r.path + "\r\nX-Evil: 1"}}, r.method + " " + r.body});
        });
    server->start();
  }
  std::shared_ptr<Exchange> hanging;
  ~Fixture() override {
    hanging.reset();
    if (server) server->stop();
  }
};
class Http : public Fixture {};

TEST_F(Http, KeepAliveAndPipelinedRequestsAreAnsweredInOrder) {
  open();
  Client c(server->port());
  c.send("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\noneGET /b HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::string text = c.read_until("GET ");
  EXPECT_LT(text.find("POST one"), text.find("GET ")) << text;
  EXPECT_EQ(text.find("\r\nX-Evil"), std::string::npos) << "a header value started a header";
}

TEST_F(Http, AStreamIsChunkedAndEnds) {
  open();
  Client c(server->port());
  c.send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::string text = c.read_until("0\r\n\r\n");
  EXPECT_NE(text.find("5\r\npart0\r\n"), std::string::npos) << text;
  EXPECT_TRUE(text.ends_with("0\r\n\r\n"));
}

TEST_F(Http, AnHttp10StreamEndsWithTheConnection) {
  open();
  Client c(server->port());
  c.send("GET /stream HTTP/1.0\r\n\r\n");
  const std::string text = c.read_until("never");
  EXPECT_TRUE(text.ends_with("part0part1part2")) << text;
}

TEST_F(Http, MalformedOversizedAndRefusedRequestsGetAnAnswer) {
  Options o;
  o.max_body_bytes = 100;
  open(o);
  const std::pair<std::string, const char*> cases[] = {
      {"NONSENSE\r\n\r\n", "400"},
      {"GET / HTTP/1.1\r\nbroken header\r\n\r\n", "400"},
      {"POST / HTTP/1.1\r\nContent-Length: 101\r\n\r\n", "413"},
      {"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n" + std::string(255, 'x') + "\r\n0\r\n\r\n", "413"},
      {"GET / HTTP/1.1\r\nA: " + std::string(20000, 'x') + "\r\n\r\n", "431"},
      {"POST /refused HTTP/1.1\r\nContent-Length: 50\r\n\r\n", "403"},
      {"GET /drop HTTP/1.1\r\nHost: x\r\n\r\n", "500"},
  };
  for (const auto& [request, status] : cases) {
    Client c(server->port());
    c.send(request);
    EXPECT_EQ(c.read_until("\r\n").substr(9, 3), status) << request.substr(0, 60);
  }
}

template <class F>
void wait_for(F&& condition) {
  for (int i = 0; i < 30'000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

TEST_F(Http, AClientThatLeavesIsNoticed) {
  open();
  {
    Client c(server->port());
    c.send("GET /hang HTTP/1.1\r\nHost: x\r\n\r\n");
    wait_for([&] { return seen == 1; });
    ASSERT_EQ(seen, 1);
  }
  wait_for([&] { return closed == 1; });
  EXPECT_EQ(closed, 1);
  EXPECT_TRUE(hanging->closed());
}

// The server's thread may be late itself, and then sees a request and its deadline at once.
TEST_F(Http, ARequestThatCameInTimeIsAnsweredByALateServerToo) {
  Options o;
  o.header_timeout_s = 1;
  open(o);
  for (const std::string body : {"", "body"}) {
    Client busy(server->port()), c(server->port());
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // both are accepted
    busy.send("GET /busy HTTP/1.1\r\nHost: x\r\n\r\n");
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    c.send("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
    const std::string text = c.read_until("POST " + body);
    EXPECT_TRUE(text.starts_with("HTTP/1.1 200") && text.ends_with("POST " + body)) << text;
  }
}

TEST_F(Http, WhatIsLeftOfARequestThatWasRefusedForBeingLateIsNoRequest) {
  Options o;
  o.header_timeout_s = o.body_timeout_s = 1;
  open(o);
  for (const auto& [first, rest] : {std::pair<const char*, const char*>{"GET /a HTTP/1.1\r\nHo", "st: x\r\n\r\n"}, {"POST /a HTTP/1.1\r\nContent-Length: 4\r\n\r\nbo", "dy"}}) {
    Client c(server->port());
    c.send(first);
    EXPECT_EQ(c.read_until("in time").substr(9, 3), "408");
    c.send(rest);
    EXPECT_EQ(c.read_until("never"), "");
  }
  EXPECT_EQ(seen, 0);
}

TEST_F(Http, TooManyConnectionsAreToldSo) {
  Options o;
  o.max_connections = 2;
  open(o);
  Client a(server->port()), b(server->port());
  a.send("GET /hang HTTP/1.1\r\nHost: x\r\n\r\n");
  wait_for([&] { return server->connections() == 2; });
  Client c(server->port());
  EXPECT_EQ(c.read_until("\r\n").substr(9, 3), "503");
}

TEST_F(Http, AnAddressInUseIsSaid) {
  open();
  Options o;
  o.port = server->port();
  try {
    HttpServer second(o, {}, {});
    FAIL() << "two servers on one port";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), "E501");
    EXPECT_NE(e.message().find("address in use"), std::string::npos);
  }
}

}  // namespace
}  // namespace qengine::http
