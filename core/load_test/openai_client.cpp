#include "core/load_test/openai_client.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <boost/beast/version.hpp>
#include <chrono>
#include <cstring>
#include <ctime>
#include <future>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "core/base/error.hpp"

namespace qengine {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using Json = nlohmann::ordered_json;
using Tcp = beast::tcp_stream;
using Tls = beast::ssl_stream<beast::tcp_stream>;

constexpr std::size_t kRead = 16 << 10;
constexpr std::uint64_t kMostBody = 256u << 20;
constexpr std::size_t kMostErrorText = 300;

// Every stream is an open file.
void raise_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) limit.rlim_cur = limit.rlim_max, setrlimit(RLIMIT_NOFILE, &limit);
}

// The message of an OpenAI error body, or the beginning of whatever came.
std::string error_text(std::string_view body) {
  const Json j = Json::parse(body, nullptr, false);
  if (j.is_object() && j.contains("error")) {
    const Json& e = j["error"];
    if (e.is_object() && e.contains("message") && e["message"].is_string()) return e["message"].get<std::string>().substr(0, kMostErrorText);
    if (e.is_string()) return e.get<std::string>().substr(0, kMostErrorText);
  }
  return std::string(body.substr(0, kMostErrorText));
}

}  // namespace

Url parse_url(const std::string& text) {
  const auto bad = [&] { return Error("E101", "\"" + text.substr(0, 200) + "\" is no address of a server").hint("write it as http://HOST:PORT or https://HOST/PATH"); };
  Url u;
  std::string rest = text;
  if (rest.starts_with("http://")) rest = rest.substr(7);
  else if (rest.starts_with("https://")) rest = rest.substr(8), u.tls = true;
  else if (rest.find("://") != rest.npos) throw bad();
  const auto slash = rest.find('/');
  if (slash != rest.npos) u.path = rest.substr(slash), rest.resize(slash);
  while (!u.path.empty() && u.path.back() == '/') u.path.pop_back();
  const auto bracket = rest.rfind(']');  // [::1]:8000
  const auto colon = rest.rfind(':');
  if (colon != rest.npos && (bracket == rest.npos || colon > bracket)) u.port = rest.substr(colon + 1), rest.resize(colon);
  else u.port = u.tls ? "443" : "80";
  if (rest.size() > 2 && rest.front() == '[' && rest.back() == ']') rest = rest.substr(1, rest.size() - 2);
  u.host = rest;
  if (u.host.empty() || u.port.empty() || u.port.size() > 5 || !std::all_of(u.port.begin(), u.port.end(), [](char c) { return c >= '0' && c <= '9'; }) ||
      u.host.find_first_of(" \t@\\") != u.host.npos)
    throw bad();
  return u;
}

// ---- server-sent events --------------------------------------------------------------------------

EventStream::Seen EventStream::push(std::string_view bytes) {
  Seen seen;
  rest_.append(bytes);
  std::size_t begin = 0;
  for (std::size_t end; (end = rest_.find('\n', begin)) != rest_.npos; begin = end + 1) {
    std::string_view one(rest_.data() + begin, end - begin);
    if (!one.empty() && one.back() == '\r') one.remove_suffix(1);
    line(one, seen);
  }
  rest_.erase(0, begin);
  return seen;
}

void EventStream::line(std::string_view text, Seen& seen) {
  if (!text.starts_with("data:")) return;  // comments, event names, the empty line between events
  text.remove_prefix(5);
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  if (text.empty()) return;
  if (text == "[DONE]") {
    seen.finished = true;
    return;
  }
  const Json j = Json::parse(text, nullptr, false);
  if (!j.is_object()) {
    seen.error = "an event that is no JSON object: " + std::string(text.substr(0, 80));
    return;
  }
  if (j.contains("error")) seen.error = error_text(text);
  const auto choices = j.find("choices");
  bool counts = choices != j.end() && choices->is_array() && !choices->empty();
  if (const auto usage = j.find("usage"); usage != j.end() && usage->is_object()) {
    prompt_tokens_ = usage->value("prompt_tokens", prompt_tokens_);
    output_tokens_ = usage->value("completion_tokens", output_tokens_);
    if (const auto d = usage->find("prompt_tokens_details"); d != usage->end() && d->is_object() && d->contains("cached_tokens") && (*d)["cached_tokens"].is_number_integer())
      cached_tokens_ = (*d)["cached_tokens"].get<std::int64_t>();
    counts |= chat_;
  }
  seen.events += counts;
}

// ---- the client ------------------------------------------------------------------------------------

struct OpenAiClient::Impl {
  Options options;
  asio::io_context io{1};
  asio::ssl::context tls{asio::ssl::context::tls_client};
  asio::executor_work_guard<asio::io_context::executor_type> work = asio::make_work_guard(io);
  asio::ip::tcp::resolver::results_type addresses;
  bool resolved = false;
  std::vector<std::unique_ptr<Tcp>> idle;
  std::vector<std::unique_ptr<Tls>> idle_tls;
  std::set<Tcp*> open;  // of running requests
  std::atomic<bool> cancelled{false};
  std::atomic<double> cpu{0};
  std::thread thread;

  static Tcp& lowest(Tcp& s) { return s; }
  static Tcp& lowest(Tls& s) { return s.next_layer(); }

  std::string authority() const {
    const bool plain_port = options.url.port == (options.url.tls ? "443" : "80");
    const std::string host = options.url.host.find(':') != std::string::npos ? "[" + options.url.host + "]" : options.url.host;
    return plain_port ? host : host + ":" + options.url.port;
  }

  asio::awaitable<void> connect(Tcp& s) {
    if (!resolved) {
      asio::ip::tcp::resolver resolver(io);
      addresses = co_await resolver.async_resolve(options.url.host, options.url.port, asio::use_awaitable);
      resolved = true;
    }
    s.expires_after(std::chrono::seconds(30));
    co_await s.async_connect(addresses, asio::use_awaitable);
    s.socket().set_option(asio::ip::tcp::no_delay(true));
  }
  asio::awaitable<std::unique_ptr<Tcp>> fresh(Tcp*) {
    auto s = std::make_unique<Tcp>(io);
    co_await connect(*s);
    co_return s;
  }
  asio::awaitable<std::unique_ptr<Tls>> fresh(Tls*) {
    auto s = std::make_unique<Tls>(io, tls);
    SSL_set_tlsext_host_name(s->native_handle(), options.url.host.c_str());
    s->set_verify_callback(asio::ssl::host_name_verification(options.url.host));
    co_await connect(s->next_layer());
    co_await s->async_handshake(asio::ssl::stream_base::client, asio::use_awaitable);
    co_return s;
  }
  std::vector<std::unique_ptr<Tcp>>& pool(Tcp*) { return idle; }
  std::vector<std::unique_ptr<Tls>>& pool(Tls*) { return idle_tls; }

  http::request<http::string_body> request(http::verb verb, const std::string& path, std::string body) const {
    http::request<http::string_body> r{verb, options.url.path + path, 11};
    r.set(http::field::host, authority());
    r.set(http::field::user_agent, "qengine-bench");
    r.set(http::field::accept, verb == http::verb::post ? "text/event-stream" : "application/json");
    if (!options.api_key.empty()) r.set(http::field::authorization, "Bearer " + options.api_key);
    if (verb == http::verb::post) r.set(http::field::content_type, "application/json");
    r.body() = std::move(body);
    r.prepare_payload();
    return r;
  }

  // Sends and reads; `take` is given the status and each piece of the body as it comes, and is called with an empty piece at the end.
  template <class Stream, class Take>
  asio::awaitable<void> exchange(http::request<http::string_body> r, Take take) {
    for (bool again = true;;) {
      std::unique_ptr<Stream> s;
      auto& kept = pool(static_cast<Stream*>(nullptr));
      const bool used = !kept.empty();
      if (used) s = std::move(kept.back()), kept.pop_back();
      else s = co_await fresh(static_cast<Stream*>(nullptr));
      Tcp& tcp = lowest(*s);
      open.insert(&tcp);
      const struct Leave {
        Impl& impl;
        Tcp* tcp;
        ~Leave() { impl.open.erase(tcp); }
      } leave{*this, &tcp};
      tcp.expires_after(std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(options.timeout_s)));
      beast::flat_buffer buffer;
      http::response_parser<http::buffer_body> parser;
      parser.body_limit(kMostBody);
      boost::system::error_code ec;
      co_await http::async_write(*s, r, asio::redirect_error(asio::use_awaitable, ec));
      if (!ec) co_await http::async_read_header(*s, buffer, parser, asio::redirect_error(asio::use_awaitable, ec));
      if (ec && used && again && !cancelled) {  // the server closed a connection that lay idle
        again = false;
        continue;
      }
      if (ec) throw boost::system::system_error(ec);
      char piece[kRead];
      while (!parser.is_done()) {
        parser.get().body().data = piece;
        parser.get().body().size = sizeof piece;
        parser.get().body().more = true;
        co_await http::async_read_some(*s, buffer, parser, asio::redirect_error(asio::use_awaitable, ec));
        if (ec && ec != http::error::need_buffer) throw boost::system::system_error(ec);
        if (const std::size_t n = sizeof piece - parser.get().body().size; n > 0) take(parser.get().result_int(), std::string_view(piece, n));
      }
      take(parser.get().result_int(), {});
      if (parser.keep_alive()) {
        tcp.expires_never();
        kept.push_back(std::move(s));
      }
      co_return;
    }
  }

  // A stream of events, told to the sink.
  template <class Stream>
  asio::awaitable<void> complete(std::string body, std::shared_ptr<LoadSink> sink) {
    EventStream events(options.chat);
    std::string error, refusal;
    bool finished = false;
    try {
      co_await exchange<Stream>(request(http::verb::post, options.endpoint, std::move(body)), [&](int status, std::string_view piece) {
        // cancel_all() reaches what waits for the network just then, and not a stream between two pieces.
        if (cancelled) throw boost::system::system_error(asio::error::operation_aborted);
        if (status != 200) {
          if (refusal.size() < 64 << 10) refusal.append(piece);
          if (piece.empty()) error = "HTTP " + std::to_string(status) + ": " + error_text(refusal);
          return;
        }
        const EventStream::Seen seen = events.push(piece);
        for (int i = 0; i < seen.events; ++i) sink->event();
        if (error.empty()) error = seen.error;
        finished |= seen.finished;
      });
      if (error.empty() && !finished) error = "the stream ended without data: [DONE]";
    } catch (const std::exception& e) {
      error = cancelled ? "cancelled" : e.what();
    }
    sink->done(events.prompt_tokens(), events.output_tokens(), events.cached_tokens(), std::move(error));
  }

  template <class F>
  void spawn(F&& make) {
    asio::post(io, [this, make = std::forward<F>(make)]() mutable { asio::co_spawn(io, make(), asio::detached); });
  }
};

OpenAiClient::OpenAiClient(Options options) : impl_(std::make_unique<Impl>()) {
  raise_file_limit();
  impl_->options = std::move(options);
  impl_->tls.set_default_verify_paths();
  impl_->tls.set_verify_mode(asio::ssl::verify_peer);
  impl_->thread = std::thread([impl = impl_.get()] {
    impl->io.run();
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    impl->cpu = static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  });
}

OpenAiClient::~OpenAiClient() {
  impl_->work.reset();
  asio::post(impl_->io, [impl = impl_.get()] {
    impl->idle.clear();
    impl->idle_tls.clear();
    for (Tcp* s : impl->open) s->cancel();
  });
  impl_->thread.join();
}

void OpenAiClient::send(const LoadRequest& r, std::shared_ptr<LoadSink> sink) {
  Json body = impl_->options.extra;
  body["model"] = impl_->options.model;
  const Json prompt = r.ids.empty() ? Json(r.text) : Json(r.ids);
  if (impl_->options.chat) body["messages"] = {{{"role", "user"}, {"content", prompt}}};
  else body["prompt"] = prompt;
  body[impl_->options.chat ? "max_completion_tokens" : "max_tokens"] = r.output_tokens;
  body["temperature"] = impl_->options.temperature;
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  if (impl_->options.ignore_eos) body["ignore_eos"] = true;
  impl_->spawn([impl = impl_.get(), text = body.dump(-1, ' ', false, Json::error_handler_t::replace), sink = std::move(sink)]() mutable {
    return impl->options.url.tls ? impl->complete<Tls>(std::move(text), std::move(sink)) : impl->complete<Tcp>(std::move(text), std::move(sink));
  });
}

void OpenAiClient::cancel_all() {
  impl_->cancelled = true;
  asio::post(impl_->io, [impl = impl_.get()] {
    for (Tcp* s : impl->open) s->cancel();
  });
}

std::pair<int, std::string> OpenAiClient::call(const std::string& method, const std::string& path, const std::string& body) {
  struct Answer {
    int status = 0;
    std::string body;
    std::optional<std::string> error;  // its text: the exception itself stays on its thread
  };
  std::promise<Answer> promise;
  auto future = promise.get_future();
  const auto fetch = [](Impl* impl, http::verb verb, std::string where, std::string what, std::promise<Answer>* out) -> asio::awaitable<void> {
    Answer answer;
    try {
      const auto take = [&](int status, std::string_view piece) { answer.status = status, answer.body.append(piece); };
      auto r = impl->request(verb, where, std::move(what));
      if (impl->options.url.tls) co_await impl->exchange<Tls>(std::move(r), take);
      else co_await impl->exchange<Tcp>(std::move(r), take);
    } catch (const std::exception& e) {
      answer.error = e.what();
    }
    out->set_value(std::move(answer));
  };
  impl_->spawn([&] { return fetch(impl_.get(), method == "POST" ? http::verb::post : http::verb::get, path, body, &promise); });
  Answer answer = future.get();
  if (answer.error)
    throw Error("E505", "cannot reach " + std::string(impl_->options.url.tls ? "https://" : "http://") + impl_->authority() + ": " + *answer.error).hint("is the server running, and is the address right?");
  return {answer.status, std::move(answer.body)};
}

double OpenAiClient::cpu_seconds() const {
  if (impl_->cpu > 0) return impl_->cpu;
  std::promise<double> promise;
  auto future = promise.get_future();
  asio::post(impl_->io, [&] {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    promise.set_value(static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec));
  });
  return future.get();
}

void OpenAiClient::set_model(std::string model) { impl_->options.model = std::move(model); }

}  // namespace qengine
