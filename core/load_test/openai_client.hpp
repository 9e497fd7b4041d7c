// OpenAiClient: a LoadTarget behind a URL: any server of OpenAI's API, answers streamed.
//
// One thread of its own, on Boost.Beast; connections are kept and used again, thousands may be open at once.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "core/load_test/load_run.hpp"

namespace qengine {

struct Url {
  bool tls = false;
  std::string host, port, path;  // path without a "/" at its end: "" or "/v1"
};
// "http://host:8000/v1". Throws Error E101.
Url parse_url(const std::string& text);

// What the events of a stream said: fed with the bytes of the body as they come.
class EventStream {
 public:
  struct Seen {
    int events = 0;  // with `choices`, in these bytes
    bool finished = false;
    std::string error;
  };
  // `chat`: the usage event counts as an event of the answer, as vLLM's client does it.
  explicit EventStream(bool chat) : chat_(chat) {}
  Seen push(std::string_view bytes);

  std::int64_t prompt_tokens() const { return prompt_tokens_; }
  std::int64_t output_tokens() const { return output_tokens_; }
  std::int64_t cached_tokens() const { return cached_tokens_; }

 private:
  void line(std::string_view line, Seen& seen);
  bool chat_;
  std::string rest_;
  std::int64_t prompt_tokens_ = -1, output_tokens_ = -1, cached_tokens_ = -1;
};

class OpenAiClient final : public LoadTarget {
 public:
  struct Options {
    Url url;
    std::string endpoint = "/v1/completions";
    bool chat = false;
    std::string model;
    std::string api_key;
    nlohmann::ordered_json extra = nlohmann::ordered_json::object();  // more fields of every body
    bool ignore_eos = false;
    double temperature = 0;
    double timeout_s = 6 * 3600;  // of one request
  };
  explicit OpenAiClient(Options options);
  ~OpenAiClient() override;

  void send(const LoadRequest& request, std::shared_ptr<LoadSink> sink) override;
  void cancel_all() override;

  // One ordinary request, waited for. {status, body}. Throws Error E5xx when the server cannot be reached.
  std::pair<int, std::string> get(const std::string& path) { return call("GET", path, {}); }
  std::pair<int, std::string> call(const std::string& method, const std::string& path, const std::string& body);  // GET or POST

  double cpu_seconds() const;  // of the client's thread
  void set_model(std::string model);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace qengine
