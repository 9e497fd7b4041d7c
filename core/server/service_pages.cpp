// The routes that only read: models, tokenizer, state, metrics, the page.
#include "core/base/error.hpp"
#include "core/server/json_reply.hpp"
#include "core/server/page.hpp"
#include "core/server/service.hpp"

namespace qengine::server {

void Service::models(http::Request r, std::shared_ptr<http::Exchange> x) {
  const auto b = backend();
  Json data = Json::array();
  for (const auto& name : options_.served_names)
    data.push_back({{"id", name}, {"object", "model"}, {"created", 0}, {"owned_by", "qengine"}, {"root", b->root}, {"parent", nullptr},
                    {"max_model_len", b->engine->max_model_len()},
                    {"qengine", {{"plugin", b->plugin}, {"scheme", b->scheme}, {"kv_cache_dtype", b->kv_dtype}, {"arm", "stable"}, {"backend", b->spec.name}}}});
  if (r.path.size() > 11) {  // /v1/models/NAME
    const std::string name = r.path.substr(11);
    for (auto& d : data)
      if (d["id"] == name) return x->respond(json_reply(d));
    throw ApiError("the model \"" + name.substr(0, 100) + "\" does not exist; served: " + model_name(), "model", "model_not_found", 404);
  }
  x->respond(json_reply({{"object", "list"}, {"data", std::move(data)}}));
}

void Service::tokenize(http::Request r, std::shared_ptr<http::Exchange> x) {
  const Json body = parse_body(r.body, options_.limits.max_json_depth);
  if (!body.is_object()) throw ApiError("the body must be a JSON object", {}, "invalid_json");
  if (body.contains("model") && body["model"].is_string()) check_model(body["model"].get<std::string>());
  std::vector<std::int32_t> ids;
  bool add = !body.contains("messages");
  if (body.contains("add_special_tokens") && body["add_special_tokens"].is_boolean()) add = body["add_special_tokens"].get<bool>();
  if (body.contains("messages")) {
    Json copy = body;
    copy.erase("add_special_tokens");
    try {
      ids = tokenizer_->encode(render_chat(read_chat(copy, limits())), add);
    } catch (const Error& e) {
      throw ApiError::from(e, "messages");
    }
  } else if (body.contains("prompt") && body["prompt"].is_string()) {
    ids = tokenizer_->encode(body["prompt"].get<std::string>(), add);
  } else {
    throw ApiError("give prompt (a string) or messages", "prompt");
  }
  Json out = {{"count", ids.size()}, {"max_model_len", backend()->engine->max_model_len()}, {"tokens", ids}};
  if (body.value("return_token_strs", false)) {
    out["token_strs"] = Json::array();
    for (const auto id : ids) out["token_strs"].push_back(tokenizer_->piece(id));
  }
  x->respond(json_reply(out));
}

void Service::detokenize(http::Request r, std::shared_ptr<http::Exchange> x) {
  const Json body = parse_body(r.body, options_.limits.max_json_depth);
  if (!body.is_object() || !body.contains("tokens") || !body["tokens"].is_array()) throw ApiError("tokens must be a list of token ids", "tokens");
  std::vector<std::int32_t> ids;
  const std::int64_t vocabulary = backend()->engine->config().vocab_size;
  for (const auto& t : body["tokens"]) {
    if (!t.is_number_integer() || t.get<std::int64_t>() < 0 || t.get<std::int64_t>() >= vocabulary)
      throw ApiError("tokens holds " + t.dump().substr(0, 40) + ", which is no token id of this model", "tokens");
    ids.push_back(t.get<std::int32_t>());
  }
  x->respond(json_reply({{"prompt", tokenizer_->decode(ids, false)}}));
}

void Service::tokenizer_info(http::Request, std::shared_ptr<http::Exchange> x) {
  if (!options_.tokenizer_info) throw ApiError("/tokenizer_info is switched off", {}, "unknown_url", 404);
  const auto b = backend();
  Json out = {{"tokenizer_class", "qengine"}, {"model_max_length", b->engine->max_model_len()}};
  auto text = [](const std::string& s) { return s.empty() ? Json(nullptr) : Json(s); };
  out["bos_token"] = text(tokenizer_->bos_text());
  out["eos_token"] = text(tokenizer_->eos_text());
  out["pad_token"] = b->engine->config().pad_id >= 0 ? Json(tokenizer_->piece(b->engine->config().pad_id)) : Json(nullptr);
  out["chat_template"] = text(template_source_);
  x->respond(json_reply(out));
}

void Service::server_info(http::Request, std::shared_ptr<http::Exchange> x) {
  const auto b = backend();
  const Engine& engine = *b->engine;
  Json layers = Json::array();
  for (const LayerReport& l : engine.format().report())
    layers.push_back({{"name", l.name}, {"plugin", l.plugin}, {"scheme", l.scheme}, {"kernel", l.kernel}, {"tier", l.tier}, {"bytes", l.bytes}, {"reason", l.reason}});
  const MemoryReport memory = engine.memory();
  x->respond(json_reply({{"model", model_name()},
                   {"backend", b->spec.name},
                   {"root", b->root},
                   {"version", options_.version},
                   {"max_model_len", engine.max_model_len()},
                   {"kv", engine.kv_report()},
                   {"memory", {{"weights_bytes", memory.weights_bytes}, {"kv_bytes", memory.kv_bytes}, {"workspace_bytes", memory.workspace_bytes}, {"peak_rss_bytes", memory.peak_rss_bytes}}},
                   {"layers", std::move(layers)}}));
}

void Service::health(http::Request, std::shared_ptr<http::Exchange> x) { x->respond({200, {}, ""}); }

void Service::ready(http::Request, std::shared_ptr<http::Exchange> x) {
  if (draining_) throw ApiError("the server is shutting down", {}, "draining", 503);
  if (!router_.stable()) throw swapping();
  x->respond({200, {}, ""});
}

void Service::version(http::Request, std::shared_ptr<http::Exchange> x) {
  Json out = {{"version", options_.version}};
  if (options_.build.is_object())
    for (const auto& [k, v] : options_.build.items()) out[k] = v;
  x->respond(json_reply(out));
}

void Service::metrics_page(http::Request, std::shared_ptr<http::Exchange> x) {
  x->respond({200, {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}}, metrics_.render()});
}

void Service::page(http::Request, std::shared_ptr<http::Exchange> x) {
  x->respond({200, {{"Content-Type", "text/html; charset=utf-8"}, {"Content-Security-Policy", "default-src 'self' 'unsafe-inline'; img-src data:"}}, std::string(kPage)});
}

}  // namespace qengine::server
