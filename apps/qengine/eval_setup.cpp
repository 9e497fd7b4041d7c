#include "apps/qengine/eval_setup.hpp"

#include <cstring>

#include "core/plugin_host/sha256.hpp"

namespace qengine {

const SettingGroup& text_settings() {
  static const SettingGroup group{
      "Text",
      {
          {.name = "text", .kind = Kind::kTexts, .value = "FILE", .help = "a document; .jsonl: one in \"text\" of each line"},
          {.name = "prompt-ids", .kind = Kind::kTexts, .value = "1,2,3", .help = "a document as token ids"},
          {.name = "method", .kind = Kind::kChoice, .value = "docs|chunks", .fallback = "docs",
           .help = "whole documents, or pieces of the context of which the second half counts"},
          {.name = "context", .kind = Kind::kInt, .value = "N", .shown = "the model's; chunks: 512",
           .help = "longest run of tokens seen at once", .least = 4},
          {.name = "stride", .kind = Kind::kInt, .value = "N", .shown = "half the context",
           .help = "docs: how far the window moves over a longer document", .least = 1},
      }};
  return group;
}

bool eval_needs_tokenizer(const Invocation& in) { return !in.values.list("text").empty(); }

void check_ids(const Engine& engine, const std::vector<std::int32_t>& ids, const std::string& what) {
  for (const std::int32_t id : ids)
    if (id < 0 || id >= engine.config().vocab_size)
      throw Error("E101", "token id " + std::to_string(id) + " of " + what + " is outside the vocabulary of " + std::to_string(engine.config().vocab_size));
}

namespace {

// A plain file is one document; a .jsonl file holds one in "text" of each line.
std::vector<std::string> documents_of(const std::string& file) {
  std::string all = read_text(file);
  if (!file.ends_with(".jsonl")) return {std::move(all)};
  std::vector<std::string> out;
  std::size_t begin = 0;
  for (int line = 1; begin < all.size(); ++line) {
    std::size_t end = all.find('\n', begin);
    if (end == all.npos) end = all.size();
    const std::string_view text(all.data() + begin, end - begin);
    begin = end + 1;
    if (text.find_first_not_of(" \t\r") == text.npos) continue;
    const Json json = Json::parse(text, nullptr, false);
    if (!json.is_object() || !json.contains("text") || !json["text"].is_string())
      throw Error("E101", file + ":" + std::to_string(line) + ": expected a JSON object with a text in \"text\"");
    out.push_back(json["text"].get<std::string>());
  }
  return out;
}

}  // namespace

EvalText eval_text(const Invocation& in, const Engine& engine) {
  EvalText t;
  t.method = in.values.text("method");
  const bool chunks = t.method == "chunks";
  std::string hashed;
  for (const std::string& file : in.values.list("text"))
    for (const std::string& document : documents_of(file)) {
      hashed += document;
      t.documents.push_back(engine.tokenizer()->encode(document, /*add_special=*/true));
      const auto bos = engine.tokenizer()->bos();
      t.bos |= bos && !t.documents.back().empty() && t.documents.back()[0] == *bos;
    }
  for (const std::string& ids : in.values.list("prompt-ids")) {
    t.documents.push_back(parse_ids(ids));
    for (const std::int32_t id : t.documents.back())
      for (int b = 0; b < 4; ++b) hashed += static_cast<char>(id >> 8 * b);
  }
  if (t.documents.empty()) throw Error("E101", "no text to score").hint("--text FILE or --prompt-ids 1,2,3");
  t.sha256 = sha256_of(hashed);
  for (std::size_t d = 0; d < t.documents.size(); ++d) check_ids(engine, t.documents[d], "document " + std::to_string(d));

  t.context = std::min(in.values.integer("context", chunks ? 512 : engine.max_model_len()), engine.max_model_len());
  if (in.values.integer("context", 0) > engine.max_model_len())
    throw Error("E101", "--context " + in.values.text("context") + " is longer than the model's " + std::to_string(engine.max_model_len()))
        .hint("--max-model-len says how long the context may be");
  if (chunks) {
    std::vector<std::int32_t> all;
    for (const auto& d : t.documents) all.insert(all.end(), d.begin(), d.end());
    t.windows = chunk_windows(all, t.context, t.bos ? engine.tokenizer()->bos() : std::nullopt);
  } else {
    t.stride = in.values.integer("stride", t.context / 2);
    if (t.stride >= t.context) throw Error("E101", "--stride " + std::to_string(t.stride) + " leaves nothing of a context of " + std::to_string(t.context)).hint("a stride is shorter than the context");
    t.windows = document_windows(t.documents, t.context, t.stride);
  }
  if (t.windows.empty())
    throw Error("E101", "the text has too few tokens to score").hint(chunks ? "chunks needs at least one context of tokens; --method docs takes shorter ones" : "a document needs two tokens");
  return t;
}

EngineOptions reference_options(const Invocation& in, const EngineOptions& options) {
  EngineOptions plain;
  plain.model = in.values.text("reference");
  plain.plugins = options.plugins;
  plain.format.exact = plain.exact = options.exact;
  plain.device = options.device;
  plain.threads = options.threads;
  plain.max_model_len = options.max_model_len;
  plain.max_num_batched_tokens = options.max_num_batched_tokens;
  plain.kv_cache_memory_bytes = options.kv_cache_memory_bytes;
  plain.need_tokenizer = false;
  return plain;
}

void add_text_record(Json& document, const EvalText& t) {
  document["method"] = t.method;
  document["context"] = t.context;
  if (t.method == "docs") document["stride"] = t.stride;
  document["bos"] = t.bos;
  document["corpus_sha256"] = t.sha256;
}

Json reasons_json(const Verdict& verdict) {
  Json out = Json::array();
  for (const VerdictReason& r : verdict.reasons) out.push_back({{"gate", r.gate}, {"value", r.value}, {"limit", r.limit}});
  return out;
}

}  // namespace qengine
