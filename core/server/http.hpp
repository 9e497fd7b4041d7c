// HttpServer: HTTP/1.1 for thousands of open streams, on Boost.Beast.
//
// What it guards (serving.md 3.4): number of connections, header size and time, body size before the
// body is read, slow readers, vanished clients, pipelined requests, drain. What it does not know:
// routes, JSON, the engine.
//
// A request is handed over as (Request, Exchange). The handler answers through the Exchange from any
// thread: once with respond(), or start() + write()... + finish(). A handler that drops its Exchange
// without answering gives the client a 500.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace qengine::http {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct Request {
  std::string method;  // "GET"
  std::string path;    // without the query, still percent-encoded
  std::string query;
  std::map<std::string, std::string, std::less<>> headers;  // names in lower case
  std::string body;
  std::string remote;          // the client's address; "unix" over a Unix socket
  bool by_admin_socket = false;

  std::string_view header(std::string_view name) const {
    const auto it = headers.find(name);
    return it == headers.end() ? std::string_view{} : std::string_view(it->second);
  }
};

struct Response {
  int status = 200;
  Headers headers;
  std::string body;
};

// One request and its answer. All members are thread-safe; calls after the client left do nothing.
class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual void respond(Response response) = 0;
  virtual void start(int status, Headers headers) = 0;
  virtual void write(std::string data) = 0;  // one piece of the body; sent as soon as possible
  virtual void finish() = 0;

  // Bytes written here that the socket has not taken yet.
  virtual std::size_t buffered() const = 0;
  virtual bool closed() const = 0;
  // Called once, on the server's thread, when the client is gone before the answer was complete; at
  // once when it is gone already.
  virtual void on_close(std::function<void()> f) = 0;
  // Called on the server's thread each time buffered() falls to half of `low_water` or less after it
  // was above it.
  virtual void on_drain(std::size_t low_water, std::function<void()> f) = 0;
};

struct Options {
  std::string host = "127.0.0.1";
  int port = 8000;             // 0: any free one
  std::string uds;             // listen on this Unix socket instead
  std::string admin_uds;       // and on this one, which only this user can connect to; beside the bound on connections
  std::size_t max_connections = 4096;
  std::size_t max_header_bytes = 16 << 10;
  std::size_t max_body_bytes = 32u << 20;
  int header_timeout_s = 10;   // first byte to last byte of a header
  int idle_timeout_s = 75;     // between requests of a connection
  int body_timeout_s = 60;     // without progress
  int write_timeout_s = 60;    // a reader that takes nothing for so long is gone
};

class HttpServer {
 public:
  // Called before the body is read; a response refuses the request (key, unknown route, full queue).
  using HeaderHook = std::function<std::optional<Response>(const Request&)>;
  using Handler = std::function<void(Request, std::shared_ptr<Exchange>)>;

  // Binds at once: throws Error E501 when it cannot.
  HttpServer(Options options, HeaderHook on_header, Handler handler);
  ~HttpServer();

  int port() const;             // the bound one; 0 for a Unix socket
  std::string address() const;  // "http://127.0.0.1:8000" or "unix:/run/q.sock"; not that of admin_uds

  void start();           // starts the server's thread
  void stop_accepting();  // no new connections; idle ones are closed, the rest after their answer
  // Connections that still owe an answer.
  std::size_t busy() const;
  std::size_t connections() const;
  void stop();            // closes everything and joins

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

const char* reason(int status);

}  // namespace qengine::http
