#include "core/server/http.hpp"

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <deque>
#include <mutex>
#include <set>
#include <thread>
#include <type_traits>

#include "core/base/error.hpp"
#include "core/base/log.hpp"

namespace qengine::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace bhttp = boost::beast::http;
using Socket = asio::generic::stream_protocol::socket;
using std::chrono::seconds;

std::string lower(std::string_view s) {
  std::string out(s);
  for (char& c : out) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  return out;
}

// More open files than the usual soft limit: every stream is one.
void raise_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
}

Response plain(int status, std::string code, std::string message) {
  Response r;
  r.status = status;
  r.headers = {{"Content-Type", "application/json"}};
  r.body = R"({"error":{"message":")" + message + R"(","type":"invalid_request_error","param":null,"code":")" + code + "\"}}";
  return r;
}

}  // namespace

const char* reason(int status) {
  switch (status) {
    case 100: return "Continue";
    case 200: return "OK";
    case 204: return "No Content";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 409: return "Conflict";
    case 413: return "Payload Too Large";
    case 415: return "Unsupported Media Type";
    case 422: return "Unprocessable Entity";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 503: return "Service Unavailable";
    default: return "Status";
  }
}

struct HttpServer::Impl {
  class Connection;
  class ExchangeImpl;

  Options options;
  HeaderHook on_header;
  Handler handler;
  asio::io_context io{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{io.get_executor()};
  std::optional<asio::ip::tcp::acceptor> tcp;
  std::optional<asio::local::stream_protocol::acceptor> local, admin;
  std::thread thread;
  std::set<std::shared_ptr<Connection>> open;  // server thread only
  std::atomic<std::size_t> n_open{0}, n_busy{0};
  std::atomic<bool> draining{false};
  int bound_port = 0;

  void listen();
  void listen_on(std::optional<asio::local::stream_protocol::acceptor>& acceptor, const std::string& path, const char* flag, bool private_to_user);
  template <class Acceptor>
  void accept(Acceptor& acceptor);
  void accepted(Socket socket, std::string remote, bool by_admin_socket);
};

// Everything below runs on the server's one thread; an Exchange posts to it.
class HttpServer::Impl::Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Impl& server, Socket socket, std::string remote, bool by_admin_socket)
      : server_(server), socket_(std::move(socket)), timer_(server.io), remote_(std::move(remote)), by_admin_socket_(by_admin_socket) {}

  void start() { read_header(true); }

  void close() {
    if (dead_) return;
    dead_ = true;
    beast::error_code ec;
    no_deadline();
    socket_.shutdown(Socket::shutdown_both, ec);
    socket_.close(ec);
    end_exchange(/*client_gone=*/true);
    out_.clear();
    server_.open.erase(shared_from_this());
    server_.n_open = server_.open.size();
  }

  bool idle() const { return !exchange_ && out_.empty() && !writing_; }
  bool dead() const { return dead_; }

  void refuse(Response r) {
    keep_alive_ = false;
    send_response(std::move(r));
  }

 private:
  friend class HttpServer::Impl::ExchangeImpl;

  void expire_in(int s, void (Connection::*what)()) {
    timer_.expires_after(seconds(s));
    timer_.async_wait([self = shared_from_this(), what, which = ++deadline_](beast::error_code ec) {
      // One that had run out when it was moved comes without an error: what it waited for has come, and is not late.
      if (!ec && which == self->deadline_ && !self->dead_) ((*self).*what)();
    });
  }
  void no_deadline() {
    ++deadline_;
    timer_.cancel();
  }

  void header_timeout() {
    if (buffer_.size() == 0) return close();  // idle keep-alive
    refuse(plain(408, "request_timeout", "the request header did not arrive in time"));
  }
  void body_timeout() { refuse(plain(408, "request_timeout", "the request body did not arrive in time")); }
  void write_timeout() { close(); }

  void read_header(bool first) {
    if (server_.draining && !first) return close();
    parser_.emplace();
    parser_->header_limit(static_cast<std::uint32_t>(server_.options.max_header_bytes));
    parser_->body_limit(server_.options.max_body_bytes);
    expire_in(first || buffer_.size() ? server_.options.header_timeout_s : server_.options.idle_timeout_s, &Connection::header_timeout);
    bhttp::async_read_header(socket_, buffer_, *parser_, [self = shared_from_this()](beast::error_code ec, std::size_t) { self->have_header(ec); });
  }

  void have_header(beast::error_code ec) {
    if (dead_ || answered_early_) return;
    if (ec) {
      if (ec == bhttp::error::header_limit) return refuse(plain(431, "request_too_large", "the request header is too large"));
      if (ec == bhttp::error::body_limit) return refuse(too_large());
      if (ec.category() == make_error_code(bhttp::error::bad_method).category() && ec != bhttp::error::end_of_stream && ec != bhttp::error::partial_message)
        return refuse(plain(400, "invalid_request", "this is not an HTTP/1.1 request: " + ec.message()));
      return close();
    }
    const auto& m = parser_->get();
    request_ = Request{};
    request_.method = std::string(m.method_string());
    const std::string_view target(m.target().data(), m.target().size());
    const auto q = target.find('?');
    request_.path = std::string(target.substr(0, q));
    if (q != std::string_view::npos) request_.query = std::string(target.substr(q + 1));
    for (const auto& f : m) {
      auto& slot = request_.headers[lower({f.name_string().data(), f.name_string().size()})];
      if (!slot.empty()) slot += ", ";
      slot.append(f.value().data(), f.value().size());
    }
    request_.remote = remote_;
    request_.by_admin_socket = by_admin_socket_;
    keep_alive_ = m.keep_alive() && !server_.draining;
    http10_ = m.version() < 11;
    if (const auto length = parser_->content_length(); length && *length > server_.options.max_body_bytes) return refuse(too_large());
    if (server_.on_header) {
      if (auto refused = server_.on_header(request_)) {
        if (!parser_->is_done()) keep_alive_ = false;  // the body is not worth reading
        return send_response(std::move(*refused));
      }
    }
    if (lower(request_.header("expect")) == "100-continue") {
      static const std::string go = "HTTP/1.1 100 Continue\r\n\r\n";
      asio::async_write(socket_, asio::buffer(go), [self = shared_from_this()](beast::error_code e, std::size_t) { e ? self->close() : self->read_body(); });
      return;
    }
    read_body();
  }

  Response too_large() const {
    return plain(413, "request_too_large", "the request body is larger than " + std::to_string(server_.options.max_body_bytes) + " bytes (--max-body-bytes)");
  }

  void read_body() {
    if (dead_) return;
    if (parser_->is_done()) return have_request();
    expire_in(server_.options.body_timeout_s, &Connection::body_timeout);
    bhttp::async_read_some(socket_, buffer_, *parser_, [self = shared_from_this()](beast::error_code ec, std::size_t) {
      if (self->dead_ || self->answered_early_) return;
      if (ec == bhttp::error::body_limit) return self->refuse(self->too_large());
      if (ec == bhttp::error::end_of_stream || ec == bhttp::error::partial_message || ec == asio::error::eof) return self->close();
      if (ec && ec.category() == make_error_code(bhttp::error::bad_method).category())
        return self->refuse(plain(400, "invalid_request", "the request body is not well formed: " + ec.message()));
      if (ec) return self->close();
      self->read_body();
    });
  }

  void have_request();
  void watch_for_close();
  void send_response(Response r);
  void queue(std::string data) {
    if (dead_) return;
    out_.push_back(std::move(data));
    pump();
  }
  void pump();
  void wrote(beast::error_code ec, std::size_t n);
  void after_answer();
  // Reads and drops what a refused client still sends, so that it sees the refusal and not a reset.
  void drain_input() {
    if (dead_) return;
    socket_.async_read_some(asio::buffer(scrap_), [self = shared_from_this()](beast::error_code ec, std::size_t n) {
      if (self->dead_) return;
      if (ec || (self->drained_ += n) > (std::size_t{4} << 20)) return self->close();
      self->drain_input();
    });
  }
  void end_exchange(bool client_gone);

  Impl& server_;
  Socket socket_;
  asio::steady_timer timer_;
  std::uint64_t deadline_ = 0;  // which one timer_ waits for
  std::string remote_;
  bool by_admin_socket_;
  beast::flat_buffer buffer_;
  std::optional<bhttp::request_parser<bhttp::string_body>> parser_;
  Request request_;
  std::shared_ptr<ExchangeImpl> exchange_state_;
  bool exchange_ = false;       // an answer is owed
  bool answer_queued_ = false;  // its last byte is in out_
  bool keep_alive_ = true, http10_ = false, chunked_ = false, dead_ = false, writing_ = false;
  bool answered_early_ = false, watching_ = false;
  std::array<char, 4096> scrap_;
  std::size_t drained_ = 0;
  std::deque<std::string> out_;
  std::vector<std::string> sending_;
};

class HttpServer::Impl::ExchangeImpl {
 public:
  std::weak_ptr<Connection> connection;
  asio::io_context* io = nullptr;
  std::atomic<std::size_t> buffered{0};
  std::atomic<bool> closed{false};
  std::mutex mutex;
  std::function<void()> on_close, on_drain;
  std::size_t low_water = 0;
  bool above = false;  // server thread
};

namespace {

// The handler's end. Dropping it unanswered is the handler's fault, and the client hears of it.
template <class State, class Post>
class Handle final : public Exchange {
 public:
  Handle(std::shared_ptr<State> state, Post post) : state_(std::move(state)), post_(std::move(post)) {}
  ~Handle() override {
    if (!answered_ && !state_->closed) post_(0, Response{500, {{"Content-Type", "application/json"}}, R"({"error":{"message":"the request was dropped by the server","type":"server_error","param":null,"code":"internal_error"}})"}, {});
    else if (answered_ == 1 && !finished_) post_(3, {}, {});
  }
  void respond(Response r) override {
    const std::lock_guard order(order_);
    if (answered_) return;
    answered_ = 2;
    state_->buffered += r.body.size();
    post_(0, std::move(r), {});
  }
  void start(int status, Headers h) override {
    const std::lock_guard order(order_);
    if (answered_) return;
    answered_ = 1;
    post_(1, Response{status, std::move(h), {}}, {});
  }
  void write(std::string data) override {
    const std::lock_guard order(order_);
    if (answered_ != 1 || finished_ || data.empty() || state_->closed) return;
    state_->buffered += data.size();
    post_(2, {}, std::move(data));
  }
  void finish() override {
    const std::lock_guard order(order_);
    if (answered_ != 1 || finished_) return;
    finished_ = true;
    post_(3, {}, {});
  }
  std::size_t buffered() const override { return state_->buffered; }
  bool closed() const override { return state_->closed; }
  void on_close(std::function<void()> f) override {
    {
      const std::lock_guard lock(state_->mutex);
      if (!state_->closed) {
        state_->on_close = std::move(f);
        return;
      }
    }
    f();
  }
  void on_drain(std::size_t low_water, std::function<void()> f) override {
    const std::lock_guard lock(state_->mutex);
    state_->low_water = low_water;
    state_->on_drain = std::move(f);
  }

 private:
  std::shared_ptr<State> state_;
  Post post_;
  std::mutex order_;   // what one thread saw begun, another may write only after it in the queue
  int answered_ = 0;   // 1 streaming, 2 whole
  bool finished_ = false;
};

std::string head(int status, const Headers& headers, bool keep_alive, bool http10) {
  std::string h = "HTTP/1.1 " + std::to_string(status) + " " + reason(status) + "\r\n";
  for (const auto& [k, v] : headers) {
    h += k + ": ";
    for (const char c : v) h += c == '\r' || c == '\n' ? ' ' : c;  // a header value never starts a new header
    h += "\r\n";
  }
  if (!keep_alive) h += "Connection: close\r\n";
  else if (http10) h += "Connection: keep-alive\r\n";
  return h;
}

std::string chunk(const std::string& data) {
  char size[32];
  std::snprintf(size, sizeof size, "%zx\r\n", data.size());
  return size + data + "\r\n";
}

}  // namespace

void HttpServer::Impl::Connection::have_request() {
  no_deadline();
  request_.body = std::move(parser_->get().body());
  auto state = std::make_shared<ExchangeImpl>();
  state->connection = weak_from_this();
  state->io = &server_.io;
  exchange_state_ = state;
  exchange_ = true;
  answer_queued_ = false;
  ++server_.n_busy;
  auto post = [state](int what, Response r, std::string data) {
    asio::post(*state->io, [state, what, r = std::move(r), data = std::move(data)]() mutable {
      const auto c = state->connection.lock();
      if (!c || c->dead() || c->exchange_state_ != state) return;
      switch (what) {
        case 0: c->send_response(std::move(r)); break;
        case 1:
          c->chunked_ = !c->http10_;
          if (c->http10_) c->keep_alive_ = false;
          c->queue(head(r.status, r.headers, c->keep_alive_, c->http10_) + (c->chunked_ ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n"));
          break;
        case 2: c->queue(c->chunked_ ? chunk(data) : std::move(data)); break;
        default:
          c->answer_queued_ = true;
          if (c->chunked_) c->queue("0\r\n\r\n");
          else if (c->out_.empty() && !c->writing_) c->after_answer();
      }
    });
  };
  watch_for_close();
  server_.handler(std::move(request_), std::make_shared<Handle<ExchangeImpl, decltype(post)>>(state, post));
}

// While an answer is owed nobody reads; a readable socket then means a pipelined request or a client
// that is gone.
void HttpServer::Impl::Connection::watch_for_close() {
  if (watching_ || buffer_.size() > 0) return;
  watching_ = true;
  socket_.async_wait(Socket::wait_read, [self = shared_from_this()](beast::error_code ec) {
    self->watching_ = false;
    if (ec || self->dead_ || !self->exchange_) return;
    char c;
    const auto n = ::recv(self->socket_.native_handle(), &c, 1, MSG_PEEK | MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) self->close();
  });
}

void HttpServer::Impl::Connection::send_response(Response r) {
  answered_early_ = !exchange_;
  const bool no_body = request_.method == "HEAD" || r.status == 204;
  std::string text = head(r.status, r.headers, keep_alive_, http10_) + "Content-Length: " + std::to_string(r.body.size()) + "\r\n\r\n";
  if (!no_body) text += r.body;
  answer_queued_ = true;
  queue(std::move(text));
}

void HttpServer::Impl::Connection::pump() {
  if (writing_ || out_.empty() || dead_) return;
  writing_ = true;
  sending_.assign(std::make_move_iterator(out_.begin()), std::make_move_iterator(out_.end()));
  out_.clear();
  std::vector<asio::const_buffer> buffers;
  for (const auto& s : sending_) buffers.push_back(asio::buffer(s));
  expire_in(server_.options.write_timeout_s, &Connection::write_timeout);
  asio::async_write(socket_, buffers, [self = shared_from_this()](beast::error_code ec, std::size_t n) { self->wrote(ec, n); });
}

void HttpServer::Impl::Connection::wrote(beast::error_code ec, std::size_t) {
  writing_ = false;
  if (dead_) return;
  if (ec) return close();
  no_deadline();
  sending_.clear();
  if (const auto s = exchange_state_) {
    std::size_t left = 0;
    for (const auto& o : out_) left += o.size();
    s->buffered = left;
    std::function<void()> drained;
    {
      const std::lock_guard lock(s->mutex);
      if (s->on_drain && left <= s->low_water / 2) drained = s->on_drain;
    }
    if (drained) drained();
  }
  if (!out_.empty()) return pump();
  if (answer_queued_) after_answer();
}

void HttpServer::Impl::Connection::after_answer() {
  end_exchange(false);
  answer_queued_ = false;
  if (answered_early_) {
    if (!keep_alive_) {
      // Let the client read the refusal: take what it still sends for a moment before closing. answered_early_ stays: the rest of
      // what was refused for coming too late is no request.
      beast::error_code ec;
      socket_.shutdown(Socket::shutdown_send, ec);
      expire_in(1, &Connection::write_timeout);
      drain_input();
      return;
    }
    answered_early_ = false;
  }
  if (!keep_alive_ || server_.draining) return close();
  read_header(false);
}

void HttpServer::Impl::Connection::end_exchange(bool client_gone) {
  const auto s = std::move(exchange_state_);
  exchange_state_.reset();
  if (exchange_) {
    exchange_ = false;
    --server_.n_busy;
  }
  if (!s) return;
  std::function<void()> f;
  {
    const std::lock_guard lock(s->mutex);
    s->closed = true;
    if (client_gone) f = std::move(s->on_close);
    s->on_close = nullptr;
    s->on_drain = nullptr;
  }
  if (f) f();
}

void HttpServer::Impl::listen_on(std::optional<asio::local::stream_protocol::acceptor>& acceptor, const std::string& path, const char* flag, bool private_to_user) {
  if (path.size() >= 100) throw Error("E501", "the path of --" + std::string(flag) + " is too long: " + path).hint("a socket's path has at most 99 bytes");
  struct stat st {};
  if (::stat(path.c_str(), &st) == 0 && S_ISSOCK(st.st_mode)) ::unlink(path.c_str());
  beast::error_code ec;
  acceptor.emplace(io);
  const asio::local::stream_protocol::endpoint at(path);
  acceptor->open(at.protocol(), ec);
  if (!ec) acceptor->bind(at, ec);
  // Before listen() nobody can connect.
  if (!ec && private_to_user && ::chmod(path.c_str(), S_IRUSR | S_IWUSR) != 0) ec.assign(errno, boost::system::system_category());
  if (!ec) acceptor->listen(asio::socket_base::max_listen_connections, ec);
  if (ec) throw Error("E501", "cannot listen on " + path + ": " + ec.message()).hint("--" + std::string(flag) + " names a path whose folder exists and can be written");
}

void HttpServer::Impl::listen() {
  beast::error_code ec;
  if (!options.admin_uds.empty() && options.admin_uds == options.uds) throw Error("E501", "--admin-uds and --uds are the same path: " + options.uds).hint("give each its own; without --admin-uds the admin routes answer on --uds");
  if (!options.admin_uds.empty()) listen_on(admin, options.admin_uds, "admin-uds", true);
  if (!options.uds.empty()) return listen_on(local, options.uds, "uds", false);
  asio::ip::tcp::resolver resolver(io);
  const auto found = resolver.resolve(options.host, std::to_string(options.port), asio::ip::tcp::resolver::passive, ec);
  if (ec || found.empty()) throw Error("E501", "cannot listen on " + options.host + ": " + ec.message()).hint("--host is an address of this machine, 127.0.0.1 or 0.0.0.0");
  const asio::ip::tcp::endpoint at = found.begin()->endpoint();
  tcp.emplace(io);
  tcp->open(at.protocol(), ec);
  if (!ec) tcp->set_option(asio::socket_base::reuse_address(true), ec);
  if (!ec) tcp->bind(at, ec);
  if (!ec) tcp->listen(asio::socket_base::max_listen_connections, ec);
  if (ec) {
    std::string why = ec.message();
    std::transform(why.begin(), why.end(), why.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    if (ec == asio::error::address_in_use) why = "address in use";
    throw Error("E501", "cannot listen on " + options.host + ":" + std::to_string(options.port) + ": " + why).hint("--port 0 picks a free one and prints it");
  }
  bound_port = tcp->local_endpoint().port();
}

template <class Acceptor>
void HttpServer::Impl::accept(Acceptor& acceptor) {
  acceptor.async_accept([this, &acceptor](beast::error_code ec, typename Acceptor::protocol_type::socket s) {
    if (!ec) {
      if constexpr (std::is_same_v<typename Acceptor::protocol_type, asio::ip::tcp>) {
        beast::error_code e;
        s.set_option(asio::ip::tcp::no_delay(true), e);
        const auto peer = s.remote_endpoint(e);
        accepted(Socket(std::move(s)), e ? "?" : peer.address().to_string(), false);
      } else {
        accepted(Socket(std::move(s)), "unix", admin && &acceptor == &*admin);
      }
    }
    if (draining || ec == asio::error::operation_aborted) return;
    if (ec) {  // out of descriptors, for example: try again in a moment
      auto wait = std::make_shared<asio::steady_timer>(io, std::chrono::milliseconds(50));
      wait->async_wait([this, wait, &acceptor](beast::error_code) { if (!draining) accept(acceptor); });
      return;
    }
    accept(acceptor);
  });
}

void HttpServer::Impl::accepted(Socket socket, std::string remote, bool by_admin_socket) {
  auto c = std::make_shared<Connection>(*this, std::move(socket), std::move(remote), by_admin_socket);
  const bool full = open.size() >= options.max_connections && !by_admin_socket;
  open.insert(c);
  n_open = open.size();
  if (full) {
    Response r = plain(503, "too_many_connections", "the server holds as many connections as it may");
    r.headers.emplace_back("Retry-After", "1");
    c->refuse(std::move(r));
  } else {
    c->start();
  }
}

HttpServer::HttpServer(Options options, HeaderHook on_header, Handler handler) : impl_(std::make_unique<Impl>()) {
  impl_->options = std::move(options);
  impl_->on_header = std::move(on_header);
  impl_->handler = std::move(handler);
  raise_file_limit();
  impl_->listen();
}

HttpServer::~HttpServer() { stop(); }

int HttpServer::port() const { return impl_->bound_port; }

std::string HttpServer::address() const {
  if (!impl_->options.uds.empty()) return "unix:" + impl_->options.uds;
  return "http://" + impl_->options.host + ":" + std::to_string(impl_->bound_port);
}

void HttpServer::start() {
  asio::post(impl_->io, [impl = impl_.get()] {
    if (impl->tcp) impl->accept(*impl->tcp);
    if (impl->local) impl->accept(*impl->local);
    if (impl->admin) impl->accept(*impl->admin);
  });
  impl_->thread = std::thread([this] {
    for (;;) {
      try {
        impl_->io.run();
        return;
      } catch (const std::exception& e) {  // a handler threw: its request gets a 500, the others go on
        log("server").error("a request handler failed: {}", e.what());
      }
    }
  });
}

void HttpServer::stop_accepting() {
  if (impl_->draining.exchange(true)) return;
  asio::post(impl_->io, [impl = impl_.get()] {
    beast::error_code ec;
    if (impl->tcp) impl->tcp->close(ec);
    if (impl->local) impl->local->close(ec);
    if (impl->admin) impl->admin->close(ec);
    for (const auto& c : std::vector<std::shared_ptr<Impl::Connection>>(impl->open.begin(), impl->open.end()))
      if (c->idle()) c->close();
  });
}

std::size_t HttpServer::busy() const { return impl_->n_busy; }
std::size_t HttpServer::connections() const { return impl_->n_open; }

void HttpServer::stop() {
  if (!impl_->thread.joinable()) return;
  stop_accepting();
  asio::post(impl_->io, [impl = impl_.get()] {
    for (const auto& c : std::vector<std::shared_ptr<Impl::Connection>>(impl->open.begin(), impl->open.end())) c->close();
    impl->work.reset();
    impl->io.stop();
  });
  impl_->thread.join();
  for (const std::string* path : {&impl_->options.uds, &impl_->options.admin_uds})
    if (!path->empty()) ::unlink(path->c_str());
}

}  // namespace qengine::http
