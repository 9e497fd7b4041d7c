#include "core/load_test/unix_call.hpp"

#include <sys/socket.h>
#include <sys/time.h>

#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

#include "core/base/error.hpp"

namespace qengine {

std::pair<int, std::string> unix_call(const std::string& socket, const std::string& method, const std::string& path, const std::string& body, int timeout_s) {
  namespace asio = boost::asio;
  namespace http = boost::beast::http;
  try {
    asio::io_context io;
    asio::local::stream_protocol::socket s(io);
    s.connect(asio::local::stream_protocol::endpoint(socket));
    const timeval limit{timeout_s, 0};
    for (const int which : {SO_RCVTIMEO, SO_SNDTIMEO}) setsockopt(s.native_handle(), SOL_SOCKET, which, &limit, sizeof limit);
    http::request<http::string_body> r{method == "POST" ? http::verb::post : http::verb::get, path, 11};
    r.set(http::field::host, "localhost");
    r.set(http::field::connection, "close");
    if (method == "POST") r.set(http::field::content_type, "application/json");
    r.body() = body;
    r.prepare_payload();
    http::write(s, r);
    boost::beast::flat_buffer buffer;
    http::response<http::string_body> answer;
    http::read(s, buffer, answer);
    return {answer.result_int(), std::move(answer.body())};
  } catch (const std::exception& e) {
    throw Error("E505", "cannot reach unix:" + socket + ": " + e.what()).hint("is the server running, is the path right, and is it this user's?");
  }
}

}  // namespace qengine
