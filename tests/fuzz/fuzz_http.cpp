// Bytes from the network: whatever comes, every connection ends with whole answers or none, in time,
// and the server goes on.
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "core/server/http.hpp"

using namespace qengine;

namespace {

void require(bool ok) {
  if (!ok) std::abort();
}

const std::string& socket_path() {
  static const std::string path = std::filesystem::temp_directory_path() / ("qengine-fuzz-http-" + std::to_string(getpid()) + ".sock");
  return path;
}

http::HttpServer& server() {
  static http::HttpServer s(
      {.uds = socket_path(), .max_header_bytes = 2048, .max_body_bytes = 4096},
      [](const http::Request& r) -> std::optional<http::Response> {
        if (r.path == "/refused") return http::Response{401, {{"Content-Type", "text/plain"}}, "no"};
        return std::nullopt;
      },
      [](http::Request r, std::shared_ptr<http::Exchange> x) {
        require(r.body.size() <= 4096);
        if (r.path == "/dropped") return;
        if (r.path != "/stream") return x->respond({200, {{"X-Path", r.path}}, r.body});
        x->start(200, {{"Content-Type", "text/event-stream"}});
        for (std::size_t i = 0; i < r.body.size(); i += 100) x->write(r.body.substr(i, 100));
        x->finish();
      });
  static const bool started = (s.start(), true);
  require(started);
  return s;
}

// All that the server says until it closes; it must within ten seconds. `leave`: this end closes its half after the last
// byte, which the server takes for a client that is gone: it may or may not have answered by then.
std::string talk(std::string_view bytes, bool leave) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  require(fd >= 0);
  sockaddr_un at{};
  at.sun_family = AF_UNIX;
  socket_path().copy(at.sun_path, sizeof at.sun_path - 1);
  require(::connect(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0);
  std::string answer;
  bool sending = true;
  char buffer[8192];
  for (;;) {
    if (sending && bytes.empty()) {
      if (leave) ::shutdown(fd, SHUT_WR);
      sending = false;
    }
    pollfd p{fd, static_cast<short>(POLLIN | (sending ? POLLOUT : 0)), 0};
    int ready;
    while ((ready = ::poll(&p, 1, 10'000)) < 0 && errno == EINTR) {}  // the timer of libFuzzer's -timeout
    require(ready > 0);                                               // else a connection hangs
    if (p.revents & POLLIN) {
      const ssize_t n = ::recv(fd, buffer, sizeof buffer, 0);
      if (n <= 0) break;
      answer.append(buffer, static_cast<std::size_t>(n));
    } else if (p.revents & (POLLERR | POLLHUP)) {
      break;
    } else if (p.revents & POLLOUT) {
      const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n > 0) bytes.remove_prefix(static_cast<std::size_t>(n));
      else if (errno != EAGAIN) sending = false;
    }
  }
  ::close(fd);
  return answer;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  server();
  const std::string answer = talk({reinterpret_cast<const char*>(data), size}, /*leave=*/true);
  require(answer.empty() || answer.starts_with("HTTP/1.1 "));
  // The next client is served as if nothing had happened.
  const std::string next = talk("POST /next HTTP/1.1\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello", /*leave=*/false);
  require(next.starts_with("HTTP/1.1 200 OK\r\n") && next.ends_with("\r\n\r\nhello"));
  return 0;
}
