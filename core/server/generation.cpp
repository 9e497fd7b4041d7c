#include "core/server/generation.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/log.hpp"
#include "core/sampling/constraint.hpp"
#include "core/server/json_reply.hpp"
#include "core/server/service.hpp"
#include "core/structured/matcher.hpp"

namespace qengine::server {
namespace {

// "E107 message\n  hint  what to do" as a client sees it.
ApiError refused(std::string text, std::string code) {
  text.erase(0, text.find(' ') + 1);
  constexpr std::string_view kHint = "\n  hint  ";
  if (const auto at = text.find(kHint); at != std::string::npos) text.replace(at, kHint.size(), "; ");
  return ApiError(std::move(text), {}, std::move(code));
}

constexpr std::size_t kMaxBuffered = 256 << 10;  // of one stream; then its sequences wait

std::size_t characters(std::string_view s) {
  std::size_t n = 0;
  for (const char c : s) n += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return n;
}

double finite(float logprob) { return std::isfinite(logprob) ? static_cast<double>(logprob) : -9999.0; }

// A token as text; what is no UTF-8 by itself becomes U+FFFD when the JSON is written.
std::string token_text(const Tokenizer& t, std::int32_t id, bool as_id) {
  return as_id ? "token_id:" + std::to_string(id) : t.token_bytes(id);
}

// One entry of the completions form: {"tok": logprob, ...}, the larger value where texts collide.
Json top_object(const Tokenizer& t, const std::vector<TokenLogprob>& top, std::int32_t id, double chosen, bool as_id) {
  Json out = Json::object();
  auto add = [&](std::int32_t token, double lp) {
    const std::string key = dump(token_text(t, token, as_id));
    const std::string name = Json::parse(key).get<std::string>();
    auto it = out.find(name);
    if (it == out.end()) out[name] = lp;
    else if (lp > it->get<double>()) *it = lp;
  };
  bool seen = false;
  for (const auto& e : top) {
    add(e.id, e.id == id ? chosen : finite(e.logprob));
    seen |= e.id == id;
  }
  if (!seen) add(id, chosen);
  return out;
}

Json bytes_of(const std::string& s) {
  Json b = Json::array();
  for (const char c : s) b.push_back(static_cast<unsigned char>(c));
  return b;
}

Json chat_entry(const Tokenizer& t, std::int32_t id, double lp, bool as_id) {
  return {{"token", token_text(t, id, as_id)}, {"logprob", lp}, {"bytes", bytes_of(t.token_bytes(id))}};
}

}  // namespace

Generation::Generation(Service& service, std::shared_ptr<Backend> backend, Arm arm, ApiRequest request, std::shared_ptr<http::Exchange> exchange, std::string id, Clock::time_point arrival)
    : service_(service),
      backend_(std::move(backend)),
      arm_(arm),
      request_(std::move(request)),
      exchange_(std::move(exchange)),
      id_(std::move(id)),
      created_(std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count()),
      arrival_(arrival),
      last_sent_(arrival) {}

Generation::~Generation() {
  leave_queue(0);
  service_.release(reserved);
}

void Generation::leave_queue(double seconds) {
  if (!queued_) return;
  queued_ = false;
  std::int64_t tokens = 0;
  for (const auto& p : prompts_) tokens += static_cast<std::int64_t>(p.size());
  service_.first_token(tokens, seconds);
}

void Generation::submit(std::vector<std::vector<std::int32_t>> prompts, const std::shared_ptr<const structured::Automaton>& grammar) {
  prompts_ = std::move(prompts);
  grammar_ = grammar;
  submitted_ = Clock::now();
  queued_ = true;
  run();
  submitted_whole_ = true;
  exchange_->on_close([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->client_gone();
  });
  if (request_.stream)
    exchange_->on_drain(kMaxBuffered, [weak = weak_from_this()] {
      const auto self = weak.lock();
      if (!self || !self->paused_.exchange(false)) return;
      const std::lock_guard lock(self->ids_mutex_);
      for (const auto& c : self->choices_) self->backend_->engine->pause(c.engine_id, false);
    });
}

void Generation::run() {
  const auto n = static_cast<std::size_t>(request_.n);
  {
    const std::lock_guard lock(ids_mutex_);
    choices_.clear();
    choices_.resize(prompts_.size() * n);
  }
  const bool inside = request_.chat && request_.template_kwargs.value("__inside_reasoning", false);
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    choices_[i].prompt = i / n;
    if (request_.chat) choices_[i].parser = service_.chat_parser(request_, inside);
  }
  // With one seed, sample i of a prompt draws from seed + i: equal seeds give equal sets of choices.
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    Request r;
    r.prompt = prompts_[choices_[i].prompt];
    r.sampling = request_.sampling;
    if (request_.echo && !request_.chat && request_.sampling.logprobs >= 0) r.sampling.prompt_logprobs = std::max(r.sampling.prompt_logprobs, request_.sampling.logprobs);
    if (r.sampling.seed) *r.sampling.seed += static_cast<std::int64_t>(i % n);
    r.cache_salt = request_.cache_salt;
    if (grammar_) {
      r.sampling.constraint = std::make_shared<structured::Matcher>(grammar_, r.sampling.max_tokens);
      r.sampling.constraint->allowed();  // the first mask is made here and not between two steps
    }
    r.on_output = [weak = weak_from_this(), service = &service_, which = i + epoch_ * choices_.size()](const Output& o) { service->output(weak, which, o); };
    try {
      const RequestId id = backend_->engine->submit(std::move(r));
      {
        const std::lock_guard lock(ids_mutex_);
        choices_[i].engine_id = id;
      }
      if (finished_) backend_->engine->cancel(id);  // another choice has failed, and fail() may not have seen this one
    } catch (const Error& e) {
      cancel_all();
      finished_ = true;
      throw ApiError::from(e);
    }
  }
}

// A canary that breaks before anything of its answer was sent: nobody needs to know, the stable backend answers.
bool Generation::restart() {
  if (arm_ != Arm::kCanary || started_ || gone_ || !submitted_whole_) return false;
  std::shared_ptr<Backend> stable = service_.stable();
  if (!stable || stable == backend_) return false;
  cancel_all();
  of_arm().error->add();
  {
    const std::lock_guard lock(ids_mutex_);
    backend_ = std::move(stable);
  }
  arm_ = Arm::kStable;
  ++epoch_;
  cached_tokens_ = 0;
  log("server").info("{}: begun anew on {}", id_, backend_->spec.name);
  try {
    run();
  } catch (const ApiError& e) {
    finished_ = false;
    fail(e);
  }
  return true;
}

ArmInstruments& Generation::of_arm() const { return service_.instruments().of(arm_); }

void Generation::tell_canary(bool error) const {
  CanaryOutcome o;
  o.arm = arm_;
  o.error = error;
  o.structured = grammar_ != nullptr;
  o.tools = !request_.tools.is_null() && request_.tool_choice != "none";
  for (const Choice& c : choices_) {
    o.structured_failed |= grammar_ && (error || c.finish == FinishReason::kLength);
    o.tools_failed |= o.tools && c.parser && c.parser->failures() > 0;
  }
  if (!choices_.empty() && first_token_ != Clock::time_point{}) {
    const Choice& c = choices_.front();
    o.ttft = std::chrono::duration<double>(first_token_ - arrival_).count();
    if (c.tokens > 1) o.gap = std::chrono::duration<double>(c.last - c.first).count() / static_cast<double>(c.tokens - 1);
  }
  service_.canary().ended(o);
}

void Generation::cancel_all() {
  const std::lock_guard lock(ids_mutex_);
  for (const auto& c : choices_)
    if (c.engine_id) backend_->engine->cancel(c.engine_id);
}

void Generation::client_gone() {
  gone_ = true;
  cancel_all();
}

void Generation::fail(const ApiError& error) {
  if (finished_) return;
  finished_ = true;
  log_end(error.code.empty() ? "failed" : error.code.c_str());
  cancel_all();
  of_arm().error->add();
  if (error.code != "draining") tell_canary(true);
  if (started_) {
    exchange_->write("data: " + error.body() + "\n\n");
    exchange_->write("data: [DONE]\n\n");
    exchange_->finish();
  } else {
    exchange_->respond(error.response());
  }
}

Json Generation::head() const {
  return {{"id", id_},
          {"object", request_.chat ? (request_.stream ? "chat.completion.chunk" : "chat.completion") : "text_completion"},
          {"created", created_},
          {"model", service_.model_name()}};
}

void Generation::ensure_started() {
  if (started_) return;
  started_ = true;
  http::Headers h = {{"Content-Type", "text/event-stream; charset=utf-8"}, {"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  add_headers(h);
  exchange_->start(200, std::move(h));
}

void Generation::add_headers(http::Headers& h) const {
  if (service_.options().request_id_headers) h.emplace_back("X-Request-Id", id_);
  h.emplace_back("x-qengine-arm", to_string(arm_));
  h.emplace_back("x-qengine-backend", backend_->spec.name);
}

void Generation::emit(Json chunk) {
  ensure_started();
  exchange_->write("data: " + dump(chunk) + "\n\n");
  last_sent_ = Clock::now();
  if (exchange_->buffered() > kMaxBuffered && !paused_.exchange(true)) {
    const std::lock_guard lock(ids_mutex_);
    for (const auto& c : choices_) backend_->engine->pause(c.engine_id, true);
    // Drained between the look and the pause: the drain callback may not come again.
    if (exchange_->buffered() <= kMaxBuffered / 2 && paused_.exchange(false))
      for (const auto& c : choices_) backend_->engine->pause(c.engine_id, false);
  }
}

void Generation::add_logprobs(Choice& c, const Output& o, std::size_t offset) {
  if (request_.sampling.logprobs < 0) return;
  const Tokenizer& t = *service_.tokenizer();
  float chosen = o.logprob;
  for (const auto& e : o.top)
    if (e.id == o.token) chosen = e.logprob;  // one number in both places
  const double lp = finite(chosen);
  const auto k = static_cast<std::size_t>(request_.sampling.logprobs);
  const std::vector<TokenLogprob> top(o.top.begin(), o.top.begin() + static_cast<std::ptrdiff_t>(std::min(k, o.top.size())));
  if (request_.chat) {
    if (c.logprobs.is_null()) c.logprobs = {{"content", Json::array()}, {"refusal", nullptr}};
    Json e = chat_entry(t, o.token, lp, request_.tokens_as_ids);
    e["top_logprobs"] = Json::array();
    for (const auto& x : top) e["top_logprobs"].push_back(chat_entry(t, x.id, x.id == o.token ? lp : finite(x.logprob), request_.tokens_as_ids));
    c.logprobs["content"].push_back(std::move(e));
    return;
  }
  if (c.logprobs.is_null())
    c.logprobs = {{"tokens", Json::array()}, {"token_logprobs", Json::array()}, {"top_logprobs", Json::array()}, {"text_offset", Json::array()}};
  c.logprobs["tokens"].push_back(token_text(t, o.token, request_.tokens_as_ids));
  c.logprobs["token_logprobs"].push_back(lp);
  c.logprobs["top_logprobs"].push_back(top_object(t, top, o.token, lp, request_.tokens_as_ids));
  c.logprobs["text_offset"].push_back(offset);
}

// The prompt as the first part of the text, with its log-probabilities when they were asked for.
void Generation::echo_prompt(Choice& c, const Output& o) {
  const auto& ids = prompts_[c.prompt];
  const Tokenizer& t = *service_.tokenizer();
  StreamDecoder decoder(service_.tokenizer(), request_.sampling.skip_special_tokens);
  std::string text;
  std::size_t at = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (request_.sampling.logprobs >= 0) {
      if (c.logprobs.is_null())
        c.logprobs = {{"tokens", Json::array()}, {"token_logprobs", Json::array()}, {"top_logprobs", Json::array()}, {"text_offset", Json::array()}};
      c.logprobs["tokens"].push_back(token_text(t, ids[i], request_.tokens_as_ids));
      c.logprobs["text_offset"].push_back(at);
      const bool known = i > 0 && i < o.prompt_logprobs.size() && !o.prompt_logprobs[i].empty();
      if (!known) {
        c.logprobs["token_logprobs"].push_back(nullptr);
        c.logprobs["top_logprobs"].push_back(nullptr);
      } else {
        const auto& all = o.prompt_logprobs[i];
        float chosen = all.back().logprob;
        for (const auto& e : all)
          if (e.id == ids[i]) chosen = e.logprob;
        const auto k = static_cast<std::size_t>(request_.sampling.logprobs);
        std::vector<TokenLogprob> top(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(std::min(k, all.size())));
        c.logprobs["token_logprobs"].push_back(finite(chosen));
        c.logprobs["top_logprobs"].push_back(top_object(t, top, ids[i], finite(chosen), request_.tokens_as_ids));
      }
    }
    const std::string piece = decoder.push(ids[i]);
    text += piece;
    at += characters(piece);
  }
  text += decoder.flush();
  c.offset = characters(text);
  if (request_.stream) send_piece(static_cast<std::size_t>(&c - choices_.data()), "text", text, true, false);
  else c.text = std::move(text);
}

void Generation::take(std::size_t i, Output o) {
  if (finished_ || i / choices_.size() != epoch_) return;
  i %= choices_.size();
  Choice& c = choices_[i];
  if (c.done) return;
  const auto now = Clock::now();
  if (o.queue_s > 0) c.queue_s = o.queue_s;
  if (o.cached_tokens) cached_tokens_ = std::max<std::int64_t>(cached_tokens_, o.cached_tokens);

  if (o.finish == FinishReason::kError) {
    const bool asked = o.error.starts_with("E1");  // the request, for what cannot be
    ApiError e = asked ? refused(o.error, grammar_ ? "invalid_grammar" : "") : ApiError(o.error.empty() ? "the engine could not finish this request" : o.error, {}, o.error.find("finite") != std::string::npos ? "nonfinite_logits" : "internal_error", 500);
    if (!asked) e.headers.emplace_back("x-should-retry", "false");
    if (e.code == "nonfinite_logits") service_.instruments().nonfinite->add(), service_.instruments().corrupted->add();
    if (grammar_ && e.code != "nonfinite_logits") of_arm().structured_failures->add();
    if (!asked) {
      ++backend_->faults;
      if (arm_ == Arm::kCanary) {
        service_.canary().fault(e.code == "nonfinite_logits" ? "nonfinite" : "plugin", o.error.substr(0, o.error.find('\n')));
        if (restart()) return;
      }
    }
    service_.count_finish(FinishReason::kError);
    return fail(e);
  }

  const bool first = c.last == Clock::time_point{} && (o.token >= 0 || o.finish != FinishReason::kNone || !o.prompt_logprobs.empty());
  if (first) {
    if (request_.echo && !request_.chat) echo_prompt(c, o);
    if (request_.sampling.prompt_logprobs >= 0) {
      const auto& ids = prompts_[c.prompt];
      c.prompt_logprobs = Json::array();
      for (std::size_t p = 0; p < ids.size(); ++p) {
        if (p == 0 || p >= o.prompt_logprobs.size() || o.prompt_logprobs[p].empty()) {
          c.prompt_logprobs.push_back(nullptr);
          continue;
        }
        Json entry = Json::object();
        int rank = 0;
        for (const auto& e : o.prompt_logprobs[p]) {
          ++rank;
          Json v = {{"logprob", finite(e.logprob)}, {"rank", rank}, {"decoded_token", service_.tokenizer()->token_bytes(e.id)}};
          entry[std::to_string(e.id)] = std::move(v);
        }
        c.prompt_logprobs.push_back(std::move(entry));
      }
    }
  }
  if (o.token >= 0) {
    ++c.tokens;
    service_.instruments().generation_total->add();
    if (c.last == Clock::time_point{}) {
      c.first = now;
      service_.instruments().computed->observe(static_cast<double>(static_cast<std::int64_t>(prompts_[c.prompt].size()) - o.cached_tokens));
      service_.instruments().ttft->observe(std::chrono::duration<double>(now - arrival_).count());
      of_arm().ttft->observe(std::chrono::duration<double>(now - arrival_).count());
      if (first_token_ == Clock::time_point{}) {
        first_token_ = now;
        leave_queue(std::chrono::duration<double>(now - arrival_).count());
      }
    } else {
      service_.instruments().itl->observe(std::chrono::duration<double>(now - c.last).count());
      of_arm().itl->observe(std::chrono::duration<double>(now - c.last).count());
    }
    c.ids.push_back(o.token);
    add_logprobs(c, o, c.offset);
  }
  c.last = now;
  c.offset += characters(o.text);
  const bool last = o.finish != FinishReason::kNone;
  if (last) {
    c.done = true;
    c.finish = o.finish;
    c.stop_reason = o.stop_reason;
  }

  if (request_.chat) {
    ChatDelta d = c.parser->push(o.text);
    if (last) {
      ChatDelta rest = c.parser->finish();
      d.content += rest.content;
      d.reasoning += rest.reasoning;
      d.tools.insert(d.tools.end(), rest.tools.begin(), rest.tools.end());
      if (c.parser->failures()) of_arm().tool_failures->add(c.parser->failures());
    }
    if (!request_.include_reasoning) d.reasoning.clear();
    if (request_.stream) {
      if (!d.empty() || last || !c.role_sent) send_chat(i, d, last);
    } else {
      c.whole.content += d.content;
      c.whole.reasoning += d.reasoning;
      for (auto& t : d.tools) {
        if (t.index >= static_cast<int>(c.whole.tools.size())) c.whole.tools.push_back(t);
        else c.whole.tools[static_cast<std::size_t>(t.index)].arguments += t.arguments;
      }
    }
  } else if (request_.stream) {
    if (!o.text.empty() || last) send_piece(i, "text", o.text, true, last);
  } else {
    c.text += o.text;
  }
  if (last) {
    record_finish(c);
    end_if_all_done();
  }
}

void Generation::record_finish(const Choice& c) {
  const Instruments& m = service_.instruments();
  service_.count_finish(c.finish);
  m.generation_tokens->observe(static_cast<double>(c.tokens));
  m.max_generation->observe(static_cast<double>(c.tokens));
  m.e2e->observe(std::chrono::duration<double>(c.last - arrival_).count());
  m.queue->observe(c.queue_s);
  if (c.tokens > 0) {
    const auto scheduled = submitted_ + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(c.queue_s));
    const auto since = [](Clock::time_point a, Clock::time_point b) { return std::max(0.0, std::chrono::duration<double>(b - a).count()); };
    m.inference->observe(since(scheduled, c.last));
    m.prefill->observe(since(scheduled, c.first));
    m.decode->observe(since(c.first, c.last));
  }
  if (c.tokens > 1 && first_token_ != Clock::time_point{})
    m.tpot->observe(std::chrono::duration<double>(c.last - first_token_).count() / static_cast<double>(c.tokens - 1));
}

const char* Generation::finish_text(const Choice& c) const {
  if (request_.chat && c.parser && c.parser->calls() > 0 && c.finish == FinishReason::kStop) return "tool_calls";
  return to_string(c.finish);
}

Json Generation::stop_reason_json(const Choice& c) const {
  if (c.stop_reason.empty()) return nullptr;
  const bool digits = c.stop_reason.find_first_not_of("0123456789") == std::string::npos;
  const bool is_string = std::find(request_.sampling.stop.begin(), request_.sampling.stop.end(), c.stop_reason) != request_.sampling.stop.end();
  if (digits && !is_string && c.stop_reason.size() < 10) return std::stoll(c.stop_reason);
  return c.stop_reason;
}

void Generation::send_piece(std::size_t i, const char* key, Json value, bool counts, bool last) {
  Choice& c = choices_[i];
  Json choice = {{"index", i}, {key, std::move(value)}, {"logprobs", nullptr}, {"finish_reason", nullptr}};
  if (counts) choice["logprobs"] = std::exchange(c.logprobs, Json(nullptr));
  if (last) {
    choice["finish_reason"] = finish_text(c);
    choice["stop_reason"] = stop_reason_json(c);
  }
  if (counts && request_.return_token_ids) {
    choice["token_ids"] = std::vector<std::int32_t>(c.ids.begin() + static_cast<std::ptrdiff_t>(c.ids_sent), c.ids.end());
    c.ids_sent = c.ids.size();
  }
  Json chunk = head();
  chunk["choices"] = Json::array({std::move(choice)});
  if (request_.include_usage) chunk["usage"] = request_.continuous_usage ? usage() : Json(nullptr);
  emit(std::move(chunk));
}

void Generation::send_chat(std::size_t i, const ChatDelta& d, bool last) {
  Choice& c = choices_[i];
  if (!c.role_sent) {
    c.role_sent = true;
    send_piece(i, "delta", {{"role", "assistant"}, {"content", ""}}, false, false);
    if (d.empty() && !last) return;
  }
  Json delta = Json::object();
  if (!d.content.empty()) delta["content"] = d.content;
  if (!d.reasoning.empty()) {
    delta["reasoning"] = d.reasoning;
    delta["reasoning_content"] = d.reasoning;
  }
  for (const auto& t : d.tools) {
    Json call = {{"index", t.index}};
    if (!t.id.empty()) {
      call["id"] = t.id;
      call["type"] = "function";
      call["function"] = {{"name", t.name}, {"arguments", t.arguments}};
    } else {
      call["function"] = {{"arguments", t.arguments}};
    }
    delta["tool_calls"].push_back(std::move(call));
  }
  send_piece(i, "delta", std::move(delta), true, last);
}

Json Generation::usage() const {
  std::int64_t prompt = 0, completion = 0;
  for (const auto& p : prompts_) prompt += static_cast<std::int64_t>(p.size());
  for (const auto& c : choices_) completion += c.tokens;
  return {{"prompt_tokens", prompt}, {"completion_tokens", completion}, {"total_tokens", prompt + completion}, {"prompt_tokens_details", {{"cached_tokens", cached_tokens_}}}};
}

void Generation::end_if_all_done() {
  for (const auto& c : choices_)
    if (!c.done) return;
  finish();
}

// One line a request: its id and its figures, never its text.
void Generation::log_end(const char* how) const {
  std::int64_t prompt = 0, tokens = 0;
  for (const auto& p : prompts_) prompt += static_cast<std::int64_t>(p.size());
  for (const auto& c : choices_) tokens += c.tokens;
  const auto since = [&](Clock::time_point t) { return std::chrono::duration<double>(t - arrival_).count(); };
  log("server").info("{}: {}, {} prompt tokens ({} cached), {} tokens, first after {:.3f} s, all after {:.3f} s", id_, how, prompt, cached_tokens_, tokens,
                     first_token_ == Clock::time_point{} ? 0.0 : since(first_token_), since(Clock::now()));
}

void Generation::finish() {
  finished_ = true;
  log_end(gone_ ? "left by its client" : finish_text(choices_.front()));
  (gone_ ? of_arm().abort : of_arm().ok)->add();
  if (!gone_) tell_canary(false);
  if (gone_) {
    exchange_->finish();
    return;
  }
  if (request_.stream) {
    if (request_.include_usage) {
      Json chunk = head();
      chunk["choices"] = Json::array();
      chunk["usage"] = usage();
      emit(std::move(chunk));
    }
    exchange_->write("data: [DONE]\n\n");
    exchange_->finish();
    return;
  }
  Json out = head();
  out["system_fingerprint"] = nullptr;
  out["choices"] = Json::array();
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    Choice& c = choices_[i];
    Json choice = {{"index", i}};
    if (request_.chat) {
      Json message = {{"role", "assistant"}, {"content", c.whole.content}, {"refusal", nullptr}};
      if (!c.whole.tools.empty()) {
        if (c.whole.content.empty()) message["content"] = nullptr;
        for (const auto& t : c.whole.tools)
          message["tool_calls"].push_back({{"id", t.id}, {"type", "function"}, {"function", {{"name", t.name}, {"arguments", t.arguments}}}});
      }
      if (!c.whole.reasoning.empty()) {
        message["reasoning"] = c.whole.reasoning;
        message["reasoning_content"] = c.whole.reasoning;
      }
      choice["message"] = std::move(message);
    } else {
      choice["text"] = c.text;
    }
    choice["logprobs"] = std::move(c.logprobs);
    choice["finish_reason"] = finish_text(c);
    choice["stop_reason"] = stop_reason_json(c);
    if (request_.return_token_ids) {
      choice["token_ids"] = c.ids;
      if (!request_.chat) choice["prompt_token_ids"] = prompts_[c.prompt];
    }
    if (!request_.chat && !c.prompt_logprobs.is_null()) choice["prompt_logprobs"] = std::move(c.prompt_logprobs);
    out["choices"].push_back(std::move(choice));
  }
  if (request_.chat && !choices_[0].prompt_logprobs.is_null()) out["prompt_logprobs"] = std::move(choices_[0].prompt_logprobs);
  if (request_.chat && request_.return_token_ids) out["prompt_token_ids"] = prompts_[0];
  out["usage"] = usage();
  http::Response r;
  r.headers = {{"Content-Type", "application/json"}};
  add_headers(r.headers);
  r.body = dump(out);
  exchange_->respond(std::move(r));
}

bool Generation::tick(Clock::time_point now) {
  if (finished_) return false;
  if (!submitted_whole_) return true;
  if (service_.ending()) {
    fail(ApiError("the server is shutting down", {}, "draining", 503));
    return false;
  }
  const double limit = service_.live()->request_timeout_s;
  if (limit > 0 && std::chrono::duration<double>(now - arrival_).count() > limit) {
    fail(ApiError("the request took longer than " + std::to_string(static_cast<long long>(limit)) + " s (--request-timeout)", {}, "request_timeout", 408));
    return false;
  }
  if (request_.stream && now - last_sent_ > std::chrono::seconds(15)) {
    ensure_started();
    exchange_->write(": ping\n\n");
    last_sent_ = now;
  }
  return true;
}

}  // namespace qengine::server
