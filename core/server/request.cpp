#include "core/server/request.hpp"

#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "core/server/api_error.hpp"

namespace qengine::server {
namespace {

// Refuses what is too deep before anything recursive touches it.
struct DepthCheck : nlohmann::json_sax<Json> {
  explicit DepthCheck(int most) : most(most) {}
  int most, depth = 0;
  std::string error;
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool open() {
    if (++depth <= most) return true;
    error = "the JSON body is nested deeper than " + std::to_string(most) + " levels";
    return false;
  }
  bool start_object(std::size_t) override { return open(); }
  bool end_object() override { return --depth, true; }
  bool start_array(std::size_t) override { return open(); }
  bool end_array() override { return --depth, true; }
  bool key(string_t&) override { return true; }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& e) override {
    std::string what = e.what();
    if (const auto at = what.find("] "); at != std::string::npos) what = what.substr(at + 2);
    error = "the body is not valid JSON (byte " + std::to_string(position) + "): " + what;
    return false;
  }
};

const char* kind_of(const Json& v) { return v.is_number_float() ? "number" : v.type_name(); }

// Reads typed fields of one object and remembers which names it knows.
class Fields {
 public:
  Fields(const Json& object, ApiRequest& out) : o_(object), out_(out) {}

  // The field, or null when absent or null (both mean "default" in OpenAI's API).
  const Json* get(const char* name) {
    known_.insert(name);
    const auto it = o_.find(name);
    return it == o_.end() || it->is_null() ? nullptr : &*it;
  }

  bool boolean(const char* name, bool& out) {
    const Json* v = get(name);
    if (!v) return false;
    if (!v->is_boolean()) wrong(name, "a boolean", *v);
    out = v->get<bool>();
    return true;
  }
  bool integer(const char* name, std::int64_t& out, std::int64_t least, std::int64_t most) {
    const Json* v = get(name);
    if (!v) return false;
    out = integer_of(name, *v);
    if (out < least || out > most)
      throw ApiError(std::string(name) + " is " + std::to_string(out) + "; it must lie between " + std::to_string(least) + " and " + std::to_string(most), name);
    return true;
  }
  bool number(const char* name, double& out, double least, double most, bool least_excluded = false) {
    const Json* v = get(name);
    if (!v) return false;
    if (!v->is_number()) wrong(name, "a number", *v);
    out = v->get<double>();
    if (!std::isfinite(out) || out < least || out > most || (least_excluded && out == least)) {
      std::string bounds = most >= 1e300 ? (least_excluded ? "greater than " : "at least ") + trim(least) : "between " + trim(least) + " and " + trim(most);
      throw ApiError(std::string(name) + " is " + v->dump() + "; it must be " + bounds, name);
    }
    out_.given.insert(name);
    return true;
  }
  bool string(const char* name, std::string& out) {
    const Json* v = get(name);
    if (!v) return false;
    if (!v->is_string()) wrong(name, "a string", *v);
    out = v->get<std::string>();
    return true;
  }
  // null, a string or a list of strings
  void strings(const char* name, std::vector<std::string>& out, std::int64_t most) {
    const Json* v = get(name);
    if (!v) return;
    if (v->is_string()) {
      out = {v->get<std::string>()};
    } else if (v->is_array()) {
      if (static_cast<std::int64_t>(v->size()) > most)
        throw ApiError(std::string(name) + " has " + std::to_string(v->size()) + " entries; at most " + std::to_string(most) + " are allowed", name);
      for (std::size_t i = 0; i < v->size(); ++i) {
        if (!(*v)[i].is_string()) wrong(std::string(name) + "[" + std::to_string(i) + "]", "a string", (*v)[i]);
        out.push_back((*v)[i].get<std::string>());
      }
    } else {
      wrong(name, "a string or a list of strings", *v);
    }
  }
  void ids(const char* name, std::vector<std::int32_t>& out, std::int64_t most) {
    const Json* v = get(name);
    if (!v) return;
    if (!v->is_array()) wrong(name, "a list of token ids", *v);
    if (static_cast<std::int64_t>(v->size()) > most)
      throw ApiError(std::string(name) + " has " + std::to_string(v->size()) + " entries; at most " + std::to_string(most) + " are allowed", name);
    out = id_list(name, *v);
  }
  static std::vector<std::int32_t> id_list(const std::string& name, const Json& v) {
    std::vector<std::int32_t> out;
    out.reserve(v.size());
    for (std::size_t i = 0; i < v.size(); ++i) {
      const std::int64_t id = integer_of(name + "[" + std::to_string(i) + "]", v[i]);
      if (id < 0 || id > std::numeric_limits<std::int32_t>::max())
        throw ApiError("token id " + std::to_string(id) + " in " + name + " is outside the vocabulary", name);
      out.push_back(static_cast<std::int32_t>(id));
    }
    return out;
  }

  static std::int64_t integer_of(const std::string& name, const Json& v) {
    if (v.is_number_unsigned() && v.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      throw ApiError(name + " is too large", name);
    if (v.is_number_integer()) return v.get<std::int64_t>();
    if (v.is_number_float() && v.get<double>() == std::floor(v.get<double>()) && std::fabs(v.get<double>()) < 1e15)
      return static_cast<std::int64_t>(v.get<double>());
    wrong(name, "an integer", v);
  }

  [[noreturn]] static void wrong(const std::string& name, const std::string& expected, const Json& v) {
    throw ApiError(name + " must be " + expected + ", not " + kind_of(v), name);
  }

  void refuse(const char* name, const char* why) {
    if (get(name)) throw ApiError(std::string(name) + " is not supported: " + why, name, "unsupported_parameter");
  }
  void accept(std::initializer_list<const char*> names) {
    for (const char* n : names) known_.insert(n);
  }
  ~Fields() {
    for (const auto& [k, v] : o_.items())
      if (!known_.contains(k) && out_.ignored_fields.size() < 32) out_.ignored_fields.push_back(k.substr(0, 64));
  }

 private:
  static std::string trim(double d) {
    std::string s = std::to_string(d);
    s.erase(s.find_last_not_of('0') + 1);
    if (s.ends_with('.')) s.pop_back();
    return s;
  }
  const Json& o_;
  ApiRequest& out_;
  std::set<std::string, std::less<>> known_;
};

void read_constraint(Fields& f, ApiRequest& r, const Limits& limits) {
  Constraint& c = r.constraint;
  auto set = [&](Constraint::Kind kind, const char* name) {
    if (c.kind != Constraint::Kind::kNone) throw ApiError(std::string(name) + " comes beside another constraint; give one", name);
    c.kind = kind;
    c.param = name;
  };
  if (const Json* v = f.get("response_format")) {
    if (!v->is_object()) Fields::wrong("response_format", "an object", *v);
    const std::string type = v->value("type", std::string());
    if (type == "json_object") {
      set(Constraint::Kind::kJsonObject, "response_format");
    } else if (type == "json_schema") {
      const auto js = v->find("json_schema");
      if (js == v->end() || !js->is_object()) throw ApiError("response_format.json_schema must be an object with a schema", "response_format.json_schema");
      const auto schema = js->find("schema");
      if (schema == js->end() || !(schema->is_object() || schema->is_boolean()))
        throw ApiError("response_format.json_schema.schema must be a JSON schema", "response_format.json_schema.schema");
      set(Constraint::Kind::kJsonSchema, "response_format.json_schema.schema");
      c.schema = *schema;
    } else if (type != "text") {
      throw ApiError("response_format.type is \"" + type + "\"; supported: text, json_object, json_schema", "response_format.type");
    }
  }
  auto structured = [&](const Json& v, const std::string& base) {
    for (const auto& [key, value] : v.items()) {
      if (value.is_null()) continue;
      const std::string name = base + key;
      if (key == "json") {
        set(Constraint::Kind::kJsonSchema, name.c_str());
        if (value.is_string()) {
          c.schema = parse_body(value.get<std::string>(), limits.max_json_depth);
        } else {
          c.schema = value;
        }
      } else if (key == "json_object") {
        if (value.is_boolean() && value.get<bool>()) set(Constraint::Kind::kJsonObject, name.c_str());
      } else if (key == "regex" || key == "grammar") {
        if (!value.is_string()) Fields::wrong(name, "a string", value);
        set(key == "regex" ? Constraint::Kind::kRegex : Constraint::Kind::kGrammar, name.c_str());
        c.text = value.get<std::string>();
      } else if (key == "choice") {
        if (!value.is_array() || value.empty()) Fields::wrong(name, "a list of strings that is not empty", value);
        set(Constraint::Kind::kChoice, name.c_str());
        for (const auto& s : value) {
          if (!s.is_string()) Fields::wrong(name, "a list of strings", s);
          c.choices.push_back(s.get<std::string>());
        }
      } else if (key == "disable_any_whitespace") {
        if (!value.is_boolean()) Fields::wrong(name, "a boolean", value);
        c.blanks = !value.get<bool>();
      } else if (key == "whitespace_pattern") {
        if (!value.is_string()) Fields::wrong(name, "a string", value);
        c.blank_pattern = value.get<std::string>();
      } else if (key == "disable_additional_properties") {
        if (!value.is_boolean()) Fields::wrong(name, "a boolean", value);  // they are written only where the schema says so
      } else if (key != "backend") {
        throw ApiError(name + " is not supported", name, "unsupported_parameter");
      }
    }
  };
  if (const Json* v = f.get("structured_outputs")) {
    if (!v->is_object()) Fields::wrong("structured_outputs", "an object", *v);
    structured(*v, "structured_outputs.");
  }
  for (const char* old : {"guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_whitespace_pattern"})
    if (const Json* v = f.get(old)) structured(Json{{old + 7, *v}}, "guided_");
  if (c.blank_pattern && !c.blanks) throw ApiError("whitespace_pattern comes beside disable_any_whitespace; give one", "structured_outputs.whitespace_pattern");
  const std::size_t size = (c.blank_pattern ? c.blank_pattern->size() : 0) + (c.kind == Constraint::Kind::kJsonSchema ? c.schema.dump().size() : c.text.size() + std::accumulate(c.choices.begin(), c.choices.end(), std::size_t{0}, [](std::size_t n, const std::string& s) { return n + s.size(); }));
  if (size > limits.max_schema_bytes)
    throw ApiError(c.param + " has " + std::to_string(size) + " bytes; at most " + std::to_string(limits.max_schema_bytes) + " are allowed", c.param, "invalid_grammar");
}

void read_common(Fields& f, ApiRequest& r, const Limits& limits) {
  SamplingParams& s = r.sampling;
  f.string("model", r.model);
  f.boolean("stream", r.stream);
  if (const Json* v = f.get("stream_options")) {
    if (!v->is_object()) Fields::wrong("stream_options", "an object", *v);
    if (!r.stream) throw ApiError("stream_options needs stream: true", "stream_options");
    r.include_usage = v->value("include_usage", false);
    r.continuous_usage = v->value("continuous_usage_stats", false);
  }
  f.integer("n", r.n, 1, limits.max_n);
  f.number("temperature", s.temperature, 0, 100);
  f.number("top_p", s.top_p, 0, 1, true);
  f.number("min_p", s.min_p, 0, 1);
  f.number("presence_penalty", s.presence_penalty, -2, 2);
  f.number("frequency_penalty", s.frequency_penalty, -2, 2);
  f.number("repetition_penalty", s.repetition_penalty, 0, 1e300, true);
  if (f.integer("top_k", s.top_k, -1, std::numeric_limits<std::int32_t>::max())) r.given.insert("top_k");
  f.integer("min_tokens", s.min_tokens, 0, std::numeric_limits<std::int32_t>::max());
  std::int64_t seed = 0;
  if (f.integer("seed", seed, std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max())) s.seed = seed;
  f.strings("stop", s.stop, limits.max_stop);
  std::erase(s.stop, std::string());
  f.ids("stop_token_ids", s.stop_token_ids, 1024);
  f.boolean("include_stop_str_in_output", s.include_stop_str_in_output);
  f.boolean("ignore_eos", s.ignore_eos);
  f.boolean("skip_special_tokens", s.skip_special_tokens);
  bool b = false;
  if (f.boolean("add_special_tokens", b)) r.add_special_tokens = b;
  f.ids("allowed_token_ids", r.allowed_token_ids, std::numeric_limits<std::int32_t>::max());
  f.strings("bad_words", r.bad_words, 1024);
  f.integer("truncate_prompt_tokens", r.truncate_prompt_tokens, -1, std::numeric_limits<std::int32_t>::max());
  f.boolean("return_token_ids", r.return_token_ids);
  f.boolean("return_tokens_as_token_ids", r.tokens_as_ids);
  f.string("cache_salt", r.cache_salt);
  f.string("request_id", r.request_id);
  f.string("user", r.user);
  std::int64_t k = 0;
  const std::int64_t most = limits.max_logprobs < 0 ? std::numeric_limits<std::int32_t>::max() : limits.max_logprobs;
  if (f.integer("prompt_logprobs", k, 0, most)) {
    if (r.stream) throw ApiError("prompt_logprobs cannot be streamed; set stream to false", "prompt_logprobs");
    s.prompt_logprobs = static_cast<std::int32_t>(k);
  }
  if (const Json* v = f.get("logit_bias")) {
    if (!v->is_object()) Fields::wrong("logit_bias", "an object of token id to number", *v);
    if (static_cast<std::int64_t>(v->size()) > limits.max_logit_bias)
      throw ApiError("logit_bias has " + std::to_string(v->size()) + " entries; at most " + std::to_string(limits.max_logit_bias) + " are allowed", "logit_bias");
    for (const auto& [key, value] : v->items()) {
      std::size_t used = 0;
      long long id = -1;
      try { id = std::stoll(key, &used); } catch (const std::exception&) {}
      if (id < 0 || used != key.size() || id > std::numeric_limits<std::int32_t>::max()) throw ApiError("logit_bias key \"" + key.substr(0, 40) + "\" is not a token id", "logit_bias");
      if (!value.is_number() || std::fabs(value.get<double>()) > 100) throw ApiError("logit_bias of " + key + " must be a number from -100 to 100", "logit_bias");
      s.logit_bias[static_cast<std::int32_t>(id)] = value.get<float>();
    }
  }
  std::int64_t best_of = r.n;
  if (f.integer("best_of", best_of, 1, limits.max_n) && best_of > r.n)
    throw ApiError("best_of greater than n is not supported", "best_of", "unsupported_parameter");
  bool beam = false;
  if (f.boolean("use_beam_search", beam) && beam) throw ApiError("use_beam_search is not supported", "use_beam_search", "unsupported_parameter");
  read_constraint(f, r, limits);
  f.accept({"metadata", "store", "service_tier", "length_penalty", "early_stopping", "spaces_between_special_tokens", "priority", "prompt_cache_key", "safety_identifier"});
}

}  // namespace

Json parse_body(std::string_view body, int max_depth) {
  DepthCheck check(max_depth);
  if (!Json::sax_parse(body.begin(), body.end(), &check)) throw ApiError(check.error, {}, "invalid_json");
  return Json::parse(body.begin(), body.end());
}

ApiRequest read_completion(const Json& body, const Limits& limits) {
  if (!body.is_object()) throw ApiError("the body must be a JSON object", {}, "invalid_json");
  ApiRequest r;
  Fields f(body, r);
  read_common(f, r, limits);
  f.boolean("echo", r.echo);
  std::int64_t k = 0;
  if (f.integer("logprobs", k, 0, limits.max_logprobs < 0 ? std::numeric_limits<std::int32_t>::max() : limits.max_logprobs)) r.sampling.logprobs = static_cast<std::int32_t>(k);
  r.has_max_tokens = f.integer("max_tokens", r.sampling.max_tokens, 0, std::numeric_limits<std::int32_t>::max());
  if (!r.has_max_tokens) r.sampling.max_tokens = 16;
  if (const Json* v = f.get("suffix"); v && !(v->is_string() && v->get<std::string>().empty()))
    throw ApiError("suffix (insertion) is not supported by these models; leave it out", "suffix", "unsupported_parameter");
  if (r.sampling.max_tokens == 0 && !r.echo && r.sampling.prompt_logprobs < 0)
    throw ApiError("max_tokens is 0; it must be at least 1 unless echo is true", "max_tokens");

  const Json* p = f.get("prompt");
  if (!p) throw ApiError("prompt is missing", "prompt");
  auto one = [&](const Json& v, const std::string& name) {
    Prompt out;
    if (v.is_string()) {
      out.text = v.get<std::string>();
    } else if (v.is_array()) {
      out.is_ids = true;
      out.ids = Fields::id_list(name, v);
      if (out.ids.empty()) throw ApiError(name + " is an empty list of token ids", name);
    } else {
      Fields::wrong(name, "a string or a list of token ids", v);
    }
    return out;
  };
  if (p->is_string()) {
    r.prompts.push_back(one(*p, "prompt"));
  } else if (p->is_array()) {
    if (p->empty()) throw ApiError("prompt is an empty list", "prompt");
    if ((*p)[0].is_number()) {
      r.prompts.push_back(one(*p, "prompt"));
    } else {
      if (static_cast<std::int64_t>(p->size()) > limits.max_prompts)
        throw ApiError("prompt has " + std::to_string(p->size()) + " entries; at most " + std::to_string(limits.max_prompts) + " are allowed", "prompt");
      for (std::size_t i = 0; i < p->size(); ++i) r.prompts.push_back(one((*p)[i], "prompt[" + std::to_string(i) + "]"));
    }
  } else {
    Fields::wrong("prompt", "a string, a list of strings, or token ids", *p);
  }
  return r;
}

ApiRequest read_chat(const Json& body, const Limits& limits) {
  if (!body.is_object()) throw ApiError("the body must be a JSON object", {}, "invalid_json");
  ApiRequest r;
  r.chat = true;
  Fields f(body, r);
  read_common(f, r, limits);
  bool logprobs = false;
  f.boolean("logprobs", logprobs);
  std::int64_t k = 0;
  if (f.integer("top_logprobs", k, 0, limits.max_logprobs < 0 ? std::numeric_limits<std::int32_t>::max() : limits.max_logprobs) && k > 0 && !logprobs)
    throw ApiError("top_logprobs needs logprobs: true", "top_logprobs");
  if (logprobs) r.sampling.logprobs = static_cast<std::int32_t>(k);
  std::int64_t most = 0;
  const bool old_name = f.integer("max_tokens", most, 1, std::numeric_limits<std::int32_t>::max());
  r.has_max_tokens = f.integer("max_completion_tokens", most, 1, std::numeric_limits<std::int32_t>::max()) || old_name;
  r.sampling.max_tokens = most;
  f.boolean("add_generation_prompt", r.add_generation_prompt);
  f.boolean("continue_final_message", r.continue_final_message);
  if (r.continue_final_message && r.add_generation_prompt && body.contains("add_generation_prompt"))
    throw ApiError("continue_final_message and add_generation_prompt cannot both be true", "continue_final_message");
  if (r.continue_final_message) r.add_generation_prompt = false;
  f.boolean("include_reasoning", r.include_reasoning);
  f.boolean("echo", r.echo);
  if (const Json* v = f.get("chat_template_kwargs")) {
    if (!v->is_object()) Fields::wrong("chat_template_kwargs", "an object", *v);
    r.template_kwargs = *v;
  }
  std::string effort;
  if (f.string("reasoning_effort", effort) && !r.template_kwargs.contains("reasoning_effort")) r.template_kwargs["reasoning_effort"] = effort;
  if (f.string("chat_template", r.chat_template) && !limits.trust_request_chat_template)
    throw ApiError("a chat_template in a request is only accepted with --trust-request-chat-template", "chat_template", "unsupported_parameter");
  if (const Json* v = f.get("documents")) r.template_kwargs["documents"] = *v;

  const Json* m = f.get("messages");
  if (!m) throw ApiError("messages is missing", "messages");
  if (!m->is_array()) Fields::wrong("messages", "a list", *m);
  if (m->empty()) throw ApiError("messages is empty", "messages");
  r.messages = Json::array();
  for (std::size_t i = 0; i < m->size(); ++i) {
    const std::string name = "messages[" + std::to_string(i) + "]";
    Json message = (*m)[i];
    if (!message.is_object()) Fields::wrong(name, "an object", message);
    const auto role = message.find("role");
    if (role == message.end() || !role->is_string()) throw ApiError(name + ".role is missing", name + ".role");
    const std::string who = role->get<std::string>();
    if (who != "system" && who != "developer" && who != "user" && who != "assistant" && who != "tool" && who != "function")
      throw ApiError(name + ".role is \"" + who.substr(0, 40) + "\"; supported: system, developer, user, assistant, tool", name + ".role");
    const bool calls = message.contains("tool_calls") && message["tool_calls"].is_array() && !message["tool_calls"].empty();
    if (who == "developer") message["role"] = "system";
    auto content = message.find("content");
    if (content == message.end() || content->is_null()) {
      if (!(who == "assistant" && calls)) throw ApiError(name + ".content is missing", name + ".content");
      message["content"] = "";
    } else if (content->is_array()) {
      std::string text;
      for (std::size_t j = 0; j < content->size(); ++j) {
        const Json& part = (*content)[j];
        const std::string at = name + ".content[" + std::to_string(j) + "]";
        const std::string type = part.is_object() ? part.value("type", std::string()) : "";
        if (part.is_object() && (type == "text" || type == "input_text" || type == "refusal") && part.contains("text") && part["text"].is_string())
          text += (text.empty() ? "" : "\n") + part["text"].get<std::string>();
        else
          throw ApiError(at + " is not a text part; these models read text alone", at, "unsupported_parameter");
      }
      message["content"] = text;
    } else if (!content->is_string()) {
      Fields::wrong(name + ".content", "a string or a list of text parts", *content);
    }
    if (calls)  // arguments travel as a JSON string; templates want the object
      for (auto& call : message["tool_calls"]) {
        if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) throw ApiError(name + ".tool_calls has an entry without a function", name + ".tool_calls");
        auto& fn = call["function"];
        if (fn.contains("arguments") && fn["arguments"].is_string()) {
          Json args = Json::parse(fn["arguments"].get<std::string>(), nullptr, false);
          if (!args.is_discarded() && args.is_object()) fn["arguments"] = std::move(args);
        }
      }
    r.messages.push_back(std::move(message));
  }

  if (const Json* v = f.get("tools")) {
    if (!v->is_array()) Fields::wrong("tools", "a list", *v);
    if (static_cast<std::int64_t>(v->size()) > limits.max_tools)
      throw ApiError("tools has " + std::to_string(v->size()) + " entries; at most " + std::to_string(limits.max_tools) + " are allowed", "tools");
    for (std::size_t i = 0; i < v->size(); ++i) {
      const Json& t = (*v)[i];
      const std::string name = "tools[" + std::to_string(i) + "]";
      if (!t.is_object() || t.value("type", std::string("function")) != "function" || !t.contains("function") || !t["function"].is_object() ||
          !t["function"].contains("name") || !t["function"]["name"].is_string())
        throw ApiError(name + " must be {\"type\":\"function\",\"function\":{\"name\":...}}", name);
    }
    if (!v->empty()) r.tools = *v;
  }
  if (const Json* v = f.get("tool_choice")) {
    if (v->is_string()) {
      r.tool_choice = v->get<std::string>();
      if (r.tool_choice != "auto" && r.tool_choice != "none" && r.tool_choice != "required")
        throw ApiError("tool_choice is \"" + r.tool_choice.substr(0, 40) + "\"; supported: auto, none, required, or a function", "tool_choice");
    } else if (v->is_object() && v->contains("function") && (*v)["function"].is_object() && (*v)["function"].contains("name") && (*v)["function"]["name"].is_string()) {
      r.tool_choice = "function";
      r.tool_name = (*v)["function"]["name"].get<std::string>();
      bool found = false;
      for (const auto& t : r.tools) found |= t["function"]["name"] == r.tool_name;
      if (!found) throw ApiError("tool_choice names \"" + r.tool_name + "\", which is not in tools", "tool_choice");
    } else {
      throw ApiError("tool_choice must be a string or {\"type\":\"function\",\"function\":{\"name\":...}}", "tool_choice");
    }
    if (r.tools.is_null() && r.tool_choice != "none" && r.tool_choice != "auto") throw ApiError("tool_choice needs tools", "tool_choice");
  }
  f.boolean("parallel_tool_calls", r.parallel_tool_calls);
  f.refuse("functions", "use tools");
  f.refuse("function_call", "use tool_choice");
  f.refuse("audio", "these models write text alone");
  if (const Json* v = f.get("modalities"); v && *v != Json::array({"text"})) throw ApiError("modalities other than text are not supported", "modalities", "unsupported_parameter");
  return r;
}

}  // namespace qengine::server
