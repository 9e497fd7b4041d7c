// Generation: one accepted request, from its prompts to its answer. Holds one engine request a choice,
// turns their outputs into JSON or an event stream, and ends exactly once.
//
// Threads: submit() on a worker; take(), tick() and fail() on the output thread, take() also while submit() is under way;
// client_gone() on the server's.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/server/api_error.hpp"
#include "core/server/backend.hpp"
#include "core/server/chat_parser.hpp"
#include "core/server/http.hpp"
#include "core/server/instruments.hpp"
#include "core/server/request.hpp"
#include "core/structured/automaton.hpp"

namespace qengine::server {

class Service;

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  using Clock = std::chrono::steady_clock;

  // `backend`: where it runs, to its end.
  Generation(Service& service, std::shared_ptr<Backend> backend, Arm arm, ApiRequest request, std::shared_ptr<http::Exchange> exchange, std::string id, Clock::time_point arrival);
  ~Generation();

  // One token list a prompt; texts for echo. Throws ApiError; then nothing runs.
  // `grammar`: what every choice must look like; null: anything.
  void submit(std::vector<std::vector<std::int32_t>> prompts, const std::shared_ptr<const structured::Automaton>& grammar);

  void take(std::size_t choice, Output output);
  // Timeouts, pings, the end of the server. False when finished. Nothing is due before submit() is done.
  bool tick(Clock::time_point now);
  void client_gone();
  // Ends what still runs with an error event or body (drain deadline, engine failure).
  void fail(const ApiError& error);

  bool finished() const { return finished_; }
  const std::string& id() const { return id_; }
  std::int64_t reserved = 0;  // places in the queue that this request holds

 private:
  struct Choice {
    std::size_t prompt = 0;
    RequestId engine_id = 0;
    bool done = false, role_sent = false;
    std::string text;       // whole, when not streaming
    Json logprobs;          // collected; when streaming only since the last chunk
    std::vector<std::int32_t> ids;
    std::size_t ids_sent = 0;
    std::size_t offset = 0;  // characters given out so far, echoed prompt included
    std::int64_t tokens = 0;
    FinishReason finish = FinishReason::kNone;
    std::string stop_reason;
    Json prompt_logprobs;
    std::unique_ptr<ChatParser> parser;
    ChatDelta whole;         // chat, not streaming
    Clock::time_point last{}, first{};
    double queue_s = 0;
  };

  Json head() const;
  void emit(Json chunk);
  void add_logprobs(Choice& c, const Output& o, std::size_t offset);
  void echo_prompt(Choice& c, const Output& o);
  // One streamed chunk of choice i: `key` is "text" or "delta". `counts`: it carries the logprobs and token
  // ids since the last one that did.
  void send_piece(std::size_t i, const char* key, Json value, bool counts, bool last);
  void send_chat(std::size_t i, const ChatDelta& delta, bool last);
  void end_if_all_done();
  void finish();
  void log_end(const char* how) const;
  Json usage() const;
  const char* finish_text(const Choice& c) const;
  Json stop_reason_json(const Choice& c) const;
  void ensure_started();
  void cancel_all();
  void record_finish(const Choice& c);
  void leave_queue(double seconds);
  void add_headers(http::Headers& h) const;
  void run();  // the prompts, on backend_
  bool restart();
  ArmInstruments& of_arm() const;
  void tell_canary(bool error) const;

  Service& service_;
  std::shared_ptr<Backend> backend_;
  Arm arm_;
  ApiRequest request_;
  std::shared_ptr<http::Exchange> exchange_;
  std::string id_;
  std::int64_t created_;
  Clock::time_point arrival_, submitted_{}, last_sent_, first_token_{};
  std::vector<std::vector<std::int32_t>> prompts_;
  std::shared_ptr<const structured::Automaton> grammar_;
  std::vector<Choice> choices_;
  std::size_t epoch_ = 0;  // how often it was begun anew: outputs of before count no more
  std::int64_t cached_tokens_ = 0;
  bool started_ = false, queued_ = false;
  std::atomic<bool> finished_{false}, gone_{false}, paused_{false}, submitted_whole_{false};
  mutable std::mutex ids_mutex_;  // engine ids and backend_ against client_gone()
};

}  // namespace qengine::server
