// A completion or chat request from its body to the engine. On a worker.
#include <algorithm>
#include <cctype>

#include "core/base/error.hpp"
#include "core/base/log.hpp"
#include "core/server/service.hpp"

namespace qengine::server {
namespace {

// A name from outside that may go into a header and a log line.
bool sane_id(std::string_view s) {
  return !s.empty() && s.size() <= 128 && std::all_of(s.begin(), s.end(), [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_' || c == '.' || c == ':'; });
}

}  // namespace

std::vector<std::int32_t> Service::encode_prompt(const Engine& engine, const Prompt& p, const ApiRequest& r) const {
  std::vector<std::int32_t> ids = p.is_ids ? p.ids : tokenizer_->encode(p.text, r.add_special_tokens.value_or(true));
  const std::int64_t vocabulary = engine.config().vocab_size;
  for (const std::int32_t id : ids)
    if (id >= vocabulary) throw ApiError("token id " + std::to_string(id) + " is outside the vocabulary of " + std::to_string(vocabulary), "prompt");
  if (ids.empty()) throw ApiError("the prompt is empty, and this model adds no token of its own to begin with", "prompt");
  std::int64_t keep = r.truncate_prompt_tokens;
  if (keep < 0) keep = std::max<std::int64_t>(1, engine.max_model_len() - r.sampling.max_tokens);
  if (keep > 0 && static_cast<std::int64_t>(ids.size()) > keep) ids.erase(ids.begin(), ids.end() - keep);
  return ids;
}

std::string Service::render_chat(const ApiRequest& r) const {
  Json v = options_.default_template_kwargs;
  for (const auto& [k, value] : r.template_kwargs.items()) v[k] = value;
  v["messages"] = r.messages;
  if (!r.tools.is_null() && r.tool_choice != "none") v["tools"] = r.tools;
  v["add_generation_prompt"] = r.add_generation_prompt;
  std::string text;
  if (!r.chat_template.empty()) {
    text = ChatTemplate(r.chat_template, tokenizer_->bos_text(), tokenizer_->eos_text()).render(v);
  } else {
    if (!template_) throw ApiError("this model has no chat template; use /v1/completions, or start with --chat-template FILE", "messages", "template_error");
    text = template_->render(v);
  }
  if (r.continue_final_message) {
    const std::string last = r.messages.back().value("content", std::string());
    if (const auto at = text.rfind(last); !last.empty() && at != std::string::npos) text.resize(at + last.size());
  }
  return text;
}

std::unique_ptr<ChatParser> Service::chat_parser(const ApiRequest& r, bool inside_reasoning) const {
  const bool tools = !r.tools.is_null() && r.tool_choice != "none";
  const bool forced = r.tool_choice == "required" || r.tool_choice == "function";
  return make_chat_parser(!tools ? "none" : forced ? structured_->tool_style() : tool_parser_, reasoning_parser_, inside_reasoning);
}

void Service::completions(http::Request r, std::shared_ptr<http::Exchange> x) {
  const auto arrival = Generation::Clock::now();
  ApiRequest q = read_completion(parse_body(r.body, options_.limits.max_json_depth), limits());
  r.body = {};
  const std::string_view given = r.header("x-request-id");
  const std::string id = "cmpl-" + (sane_id(given) ? std::string(given) : sane_id(q.request_id) ? q.request_id : std::to_string(id_salt_ % 0xFFFFFFFF) + "-" + std::to_string(next_id_++));
  generate(r, std::move(q), std::move(x), id, arrival);
}

void Service::chat(http::Request r, std::shared_ptr<http::Exchange> x) {
  const auto arrival = Generation::Clock::now();
  ApiRequest q = read_chat(parse_body(r.body, options_.limits.max_json_depth), limits());
  r.body = {};
  const std::string_view given = r.header("x-request-id");
  const std::string id = "chatcmpl-" + (sane_id(given) ? std::string(given) : sane_id(q.request_id) ? q.request_id : std::to_string(id_salt_ % 0xFFFFFFFF) + "-" + std::to_string(next_id_++));
  generate(r, std::move(q), std::move(x), id, arrival);
}

// What keeps a client on its side of a canary; "" where it has nothing of the kind.
std::string Service::sticky_value(const http::Request& head, const ApiRequest& q) const {
  const std::string by = canary_->sticky();
  if (by == "user") return q.user;
  if (by == "api_key") return std::string(head.header("authorization"));
  if (by.starts_with("header:")) return std::string(head.header(by.substr(7)));
  return {};
}

void Service::generate(const http::Request& head, ApiRequest q, std::shared_ptr<http::Exchange> x, const std::string& id, Generation::Clock::time_point arrival) {
  check_model(q.model);
  const std::shared_ptr<const LiveOptions> live = this->live();
  Arm arm = canary_->choose(sticky_value(head, q), head.header("x-qengine-arm"));
  std::shared_ptr<Backend> backend = arm == Arm::kCanary ? router_.canary() : nullptr;
  if (!backend) arm = Arm::kStable, backend = this->backend();
  const Engine& engine = *backend->engine;
  q.sampling.allowed_token_ids = q.allowed_token_ids;
  for (const std::int32_t id : q.allowed_token_ids)
    if (id >= engine.config().vocab_size) throw ApiError("allowed_token_ids names token id " + std::to_string(id) + ", outside the vocabulary", "allowed_token_ids");
  for (const std::string& word : q.bad_words) {  // at the start of a text and after a space
    for (const std::string& form : {word, " " + word})
      if (auto ids = tokenizer_->encode(form, false); !ids.empty()) q.sampling.bad_words.push_back(std::move(ids));
  }
  for (const auto& f : q.ignored_fields) log("server").debug("{}: field {} is not known and was ignored", id, f);
  const std::int64_t places = q.n * static_cast<std::int64_t>(q.chat ? 1 : q.prompts.size());
  if (reserved_.fetch_add(places) + places > live->max_num_queued_reqs && places <= live->max_num_queued_reqs) {
    reserved_ -= places;
    instruments_->rejected->add();
    throw overloaded();
  }
  if (places > live->max_num_queued_reqs) {
    reserved_ -= places;
    throw ApiError("this request asks for " + std::to_string(places) + " choices at once; the queue holds " + std::to_string(live->max_num_queued_reqs), "n");
  }
  struct Release {  // until the Generation holds the places
    Service* s;
    std::int64_t n;
    ~Release() { if (n) s->release(n); }
  } release{this, places};

  // Sampling defaults: the request, then [sampling] and generation_config.json.
  {
    const SamplingParams& d = backend->sampling;
    auto& s = q.sampling;
    if (!q.given.contains("temperature")) s.temperature = d.temperature;
    if (!q.given.contains("top_p")) s.top_p = d.top_p;
    if (!q.given.contains("top_k")) s.top_k = d.top_k;
    if (!q.given.contains("min_p")) s.min_p = d.min_p;
    if (!q.given.contains("repetition_penalty")) s.repetition_penalty = d.repetition_penalty;
    if (!q.given.contains("presence_penalty")) s.presence_penalty = d.presence_penalty;
    if (!q.given.contains("frequency_penalty")) s.frequency_penalty = d.frequency_penalty;
  }

  std::vector<std::vector<std::int32_t>> prompts;
  if (q.chat) {
    std::string text;
    try {
      text = render_chat(q);
    } catch (const Error& e) {
      throw ApiError::from(e, "messages");
    }
    if (live->log_prompts) log("server").info("{}: prompt {}", id, text);
    Prompt p;
    p.text = std::move(text);
    if (reasoning_parser_ != "none") {  // templates that open the block themselves
      const auto open = p.text.rfind("<think>"), close = p.text.rfind("</think>");
      const bool inside = open != std::string::npos && (close == std::string::npos || close < open);
      q.template_kwargs["__inside_reasoning"] = inside;
      q.sampling.prelude = {"<think>", "</think>", inside};
    }
    if (!q.add_special_tokens) q.add_special_tokens = false;  // the template has printed them
    prompts.push_back(encode_prompt(engine, p, q));
  } else {
    for (const Prompt& p : q.prompts) {
      if (live->log_prompts && !p.is_ids) log("server").info("{}: prompt {}", id, p.text);
      prompts.push_back(encode_prompt(engine, p, q));
    }
  }
  q.prompts.clear();

  std::int64_t longest = 0, total = 0;
  for (const auto& p : prompts) longest = std::max<std::int64_t>(longest, static_cast<std::int64_t>(p.size())), total += static_cast<std::int64_t>(p.size());
  const std::int64_t room = engine.max_model_len() - longest;
  if (q.chat && !q.has_max_tokens) q.sampling.max_tokens = std::max<std::int64_t>(room, 1);
  if (q.sampling.max_tokens > room)
    throw ApiError("maximum context length is " + std::to_string(engine.max_model_len()) + " tokens; the prompt has " + std::to_string(longest) + " and max_tokens asks for " +
                       std::to_string(q.sampling.max_tokens) + ", together " + std::to_string(longest + q.sampling.max_tokens) +
                       (room > 0 ? "; shorten the prompt or set max_tokens to at most " + std::to_string(room) : "; shorten the prompt"),
                   q.chat ? "messages" : "prompt", "context_length_exceeded");
  for (const auto& [token, bias] : q.sampling.logit_bias)
    if (token >= engine.config().vocab_size) throw ApiError("logit_bias names token id " + std::to_string(token) + ", outside the vocabulary", "logit_bias");

  const auto grammar = structured_->compile(q, q.template_kwargs.value("__inside_reasoning", false));

  if (live->max_num_queued_tokens > 0 && queued_prompt_tokens_ > 0 && queued_prompt_tokens_ + total > live->max_num_queued_tokens) {
    metrics_.counter("vllm:admission_rejections_total", "", {{"reason", "max_num_queued_tokens"}}).add();
    throw overloaded();
  }
  queued_prompt_tokens_ += total;
  canary_->shadow(prompts.front());
  canary_->started(id, arm);
  instruments_->prompt_total->add(static_cast<double>(total));
  for (const auto& p : prompts) instruments_->prompt_tokens->observe(static_cast<double>(p.size()));
  instruments_->params_n->observe(static_cast<double>(q.n));
  instruments_->params_max_tokens->observe(static_cast<double>(q.sampling.max_tokens));

  auto g = std::make_shared<Generation>(*this, std::move(backend), arm, std::move(q), std::move(x), id, arrival);
  g->reserved = std::exchange(release.n, 0);
  std::string key = id;
  {
    const std::lock_guard lock(mutex_);
    if (generations_.contains(key)) key += "#" + std::to_string(next_id_++);  // a client may repeat its own ids
    generations_.emplace(key, g);
  }
  try {
    g->submit(std::move(prompts), grammar);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    generations_.erase(key);
    throw;
  }
}

}  // namespace qengine::server
