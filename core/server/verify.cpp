#include "core/server/verify.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <thread>

#include "core/base/error.hpp"
#include "core/eval/greedy_prompts.hpp"
#include "core/eval/sample_text.hpp"
#include "core/eval/statistics.hpp"
#include "core/eval/verdict.hpp"

namespace qengine::server {
namespace {

constexpr std::int64_t kSampleTokens = 2048;
constexpr std::int64_t kPiece = 64;                   // tokens that a serving model computes between two of its steps
constexpr std::uint64_t kRecordBytes = 64u << 20;     // of logits that are kept
constexpr std::int64_t kGreedyTokens = 16;
constexpr int kTries = 100;                           // for blocks of a cache that requests fill, 100 ms apart

std::string text_of(const char* format, auto... values) {
  char text[256];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

void stop_if(const std::atomic<bool>& stop) {
  if (stop) throw Refusal("stopped", "the server is shutting down");
}

// Throws Error E404 to the end when the cache stays full.
std::vector<std::vector<float>> all_rows(Engine& engine, const std::vector<std::int32_t>& ids, const std::atomic<bool>& stop) {
  for (int i = 0;; ++i) {
    std::vector<std::vector<float>> rows;
    try {
      engine.all_logits(ids, [&](std::int64_t, std::span<const float> row) { rows.emplace_back(row.begin(), row.end()); });
      return rows;
    } catch (const Error& e) {
      if (e.code() != "E404" || i == kTries) throw;
    }
    stop_if(stop);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

void same_text(const Tokenizer& a, const Tokenizer& b, std::int64_t va, std::int64_t vb, bool template_override) {
  if (va != vb) throw Refusal("tokenizer", "the new model has a vocabulary of " + std::to_string(vb) + " tokens, the one that answers " + std::to_string(va));
  bool equal = a.size() == b.size() && a.bos() == b.bos() && a.eos() == b.eos() && a.bos_text() == b.bos_text() && a.eos_text() == b.eos_text();
  for (std::int32_t i = 0; equal && i < a.size(); ++i) equal = a.piece(i) == b.piece(i) && a.is_special(i) == b.is_special(i);
  if (equal) equal = a.encode(sample_text(), true) == b.encode(sample_text(), true);
  if (!equal) throw Refusal("tokenizer", "the new model's tokenizer is another one; a client would get other tokens for the same text");
  if (!template_override && a.chat_template() != b.chat_template())
    throw Refusal("template", "the new model's chat template is another one; --chat-template FILE gives both the same");
}

std::vector<std::vector<std::int32_t>> greedy_prompts(const Engine& engine) {
  std::vector<std::vector<std::int32_t>> out;
  const auto most = static_cast<std::size_t>(std::max<std::int64_t>(1, engine.max_model_len() - kGreedyTokens));
  for (const char* text : kGreedyPrompts) {
    out.push_back(engine.tokenizer()->encode(text, true));
    if (out.back().size() > most) out.back().resize(most);
  }
  return out;
}

}  // namespace

Reference::Reference(Engine& engine) : engine_(&engine), format_(format_class(engine)), tokenizer_(engine.tokenizer()), vocabulary_(engine.config().vocab_size) {
  std::vector<std::int32_t> ids = tokenizer_->encode(sample_text(), true);
  ids.resize(std::min<std::size_t>(ids.size(), kSampleTokens));
  const std::size_t piece = static_cast<std::size_t>(std::min<std::int64_t>(kPiece, engine.max_model_len()));
  for (std::size_t at = 0; at + 1 < ids.size() && piece > 1; at += piece)
    pieces_.push_back({{ids.begin() + static_cast<std::ptrdiff_t>(at), ids.begin() + static_cast<std::ptrdiff_t>(std::min(ids.size(), at + piece))}, {}});
}

std::vector<std::vector<float>> Reference::rows(const Piece& piece, const std::atomic<bool>& stop) {
  if (!piece.rows.empty()) return piece.rows;
  try {
    return all_rows(*engine_, piece.ids, stop);
  } catch (const Error& e) {
    if (e.code() == "E404") throw Refusal("busy", "the KV cache of the model that answers stays full: what the new one would say could not be compared");
    throw;
  }
}

void Reference::record(const std::atomic<bool>& stop) {
  std::uint64_t bytes = 0;
  std::size_t kept = 0;
  for (; kept < pieces_.size(); ++kept) {
    bytes += pieces_[kept].ids.size() * static_cast<std::uint64_t>(vocabulary_) * sizeof(float);
    if (kept > 1 && bytes > kRecordBytes) break;  // statistics need a hundred tokens
    stop_if(stop);
    pieces_[kept].rows = rows(pieces_[kept], stop);
  }
  pieces_.resize(kept);
  engine_ = nullptr;
}

Json verify(Engine& fresh, Reference& reference, const GateOptions& gates, bool template_override, const std::atomic<bool>& stop) {
  if (!fresh.tokenizer()) throw Refusal("tokenizer", "the new model has no tokenizer");
  same_text(*reference.tokenizer(), *fresh.tokenizer(), reference.vocabulary(), fresh.config().vocab_size, template_override);

  const auto begin = std::chrono::steady_clock::now();
  std::vector<Request> requests;
  for (auto& prompt : greedy_prompts(fresh)) {
    Request r;
    r.prompt = std::move(prompt);
    r.sampling.temperature = 0;
    r.sampling.max_tokens = std::min<std::int64_t>(kGreedyTokens, fresh.max_model_len() - std::ssize(r.prompt));
    r.sampling.ignore_eos = true;
    requests.push_back(std::move(r));
  }
  const std::size_t prompts = requests.size();
  std::int64_t tokens = 0;
  for (const auto& events : fresh.generate(std::move(requests), &stop))
    for (const Output& o : events) {
      tokens += o.token >= 0;
      if (o.finish == FinishReason::kError) throw Refusal(o.error.find("finite") != std::string::npos ? "nonfinite" : "failed", "a greedy prompt failed: " + o.error.substr(0, o.error.find('\n')));
    }
  stop_if(stop);
  Json out{{"greedy", {{"prompts", prompts}, {"tokens", tokens}, {"finite", true}, {"tok_s", static_cast<double>(tokens) / std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()}}}};

  KlStats stats;
  for (const Reference::Piece& piece : reference.pieces()) {
    stop_if(stop);
    if (std::ssize(piece.ids) > fresh.max_model_len()) continue;
    std::vector<std::vector<float>> base;
    try {
      base = reference.rows(piece, stop);
    } catch (const Error& e) {
      if (e.code() != "E406") throw;
      out["kl"] = {{"skipped", "the model that answers computes non-finite logits itself"}};
      return out;  // whatever comes is better
    }
    std::size_t at = 0;
    try {
      fresh.all_logits(piece.ids, [&](std::int64_t position, std::span<const float> row) {
        if (position + 1 < std::ssize(piece.ids)) stats.add(base.at(at), row, piece.ids[static_cast<std::size_t>(position + 1)]);
        ++at;
      });
    } catch (const Error& e) {
      throw Refusal(e.code() == "E406" ? "nonfinite" : "failed", e.message());
    }
  }
  const FormatClass own = format_class(fresh), &theirs = reference.format();
  Gates limits = default_gates(std::min(own.weight_bits, theirs.weight_bits), own.parameters, std::min(own.kv_bits, theirs.kv_bits));
  limits.kl_mean_ok = gates.kl_mean_ok.value_or(limits.kl_mean_ok);
  limits.kl_mean_fail = gates.kl_mean_fail.value_or(limits.kl_mean_fail);
  limits.same_top_warn = gates.same_top_warn.value_or(limits.same_top_warn);
  limits.ppl_ratio_fail = gates.ppl_ratio_fail.value_or(limits.ppl_ratio_fail);
  const Verdict verdict = judge(stats, limits);
  out["kl"] = {{"mean", stats.kld().value}, {"limit", limits.kl_mean_fail}, {"same_top_p", stats.same_top().value}, {"ppl_ratio", stats.ppl_ratio().value}, {"tokens", stats.count()}, {"verdict", to_string(verdict.grade)}};
  if (verdict.grade != Verdict::kFail) return out;
  for (const VerdictReason& r : verdict.reasons) {
    if (r.gate == "non_finite_tokens") throw Refusal("nonfinite", text_of("%.0f tokens of the sample have non-finite logits", r.value));
    if (r.gate == "kl_mean_fail") throw Refusal("kl", text_of("mean KL divergence to the model that answers is %.4g over %lld tokens; at most %.4g may be (gates.kl_mean_fail)", r.value, static_cast<long long>(stats.count()), r.limit));
    if (r.gate == "ppl_ratio_fail") throw Refusal("kl", text_of("perplexity is %.3g times that of the model that answers; at most %.3g may be (gates.ppl_ratio_fail)", r.value, r.limit));
  }
  return out;
}

}  // namespace qengine::server
