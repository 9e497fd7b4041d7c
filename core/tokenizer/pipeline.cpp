#include "core/tokenizer/pipeline.hpp"

#include "core/base/error.hpp"
#include "core/tokenizer/unicode.hpp"

namespace qengine {
namespace {

// Positions within a text are 32-bit.
constexpr std::size_t kMaxText = std::size_t{1} << 30;

}  // namespace

PipelineTokenizer::PipelineTokenizer(TokenizerParts parts) : parts_(std::move(parts)) {
  special_.resize(static_cast<std::size_t>(size()));
  std::vector<AddedToken> raw, normalized;
  std::vector<std::string> raw_text, normalized_text;
  for (const AddedToken& t : parts_.added) {
    if (t.special) special_[static_cast<std::size_t>(t.id)] = true;
    if (!unicode::is_valid(t.content)) continue;  // no text holds it
    std::string content = t.content;
    if (t.normalized && parts_.normalizer) {
      parts_.normalizer->apply(content);
      if (content != t.content) respelled_[t.id] = content;
    }
    (t.normalized ? normalized_text : raw_text).push_back(std::move(content));
    (t.normalized ? normalized : raw).push_back(t);
  }
  raw_ = TokenFinder(std::move(raw), std::move(raw_text));
  normalized_ = TokenFinder(std::move(normalized), std::move(normalized_text));
}

std::vector<std::int32_t> PipelineTokenizer::encode(std::string_view text, bool add_special) const {
  if (text.size() > kMaxText)
    throw Error("E107", "a text of " + std::to_string(text.size()) + " bytes is too long to tokenize at once").hint("at most 1 GiB; cut it up");
  std::string valid;
  if (!unicode::is_valid(text)) valid = unicode::sanitize(text), text = valid;
  std::vector<std::int32_t> out;
  out.reserve(text.size() / 3 + 8);
  if (add_special) out.insert(out.end(), parts_.prefix.begin(), parts_.prefix.end());
  raw_.split(
      text, [&](const AddedToken& t, std::size_t, std::size_t) { out.push_back(t.id); },
      [&](std::size_t begin, std::size_t end) { encode_text(text.substr(begin, end - begin), begin == 0, out); });
  if (add_special) out.insert(out.end(), parts_.suffix.begin(), parts_.suffix.end());
  return out;
}

void PipelineTokenizer::encode_text(std::string_view text, bool at_start, std::vector<std::int32_t>& out) const {
  std::string normal(text);
  if (parts_.normalizer) parts_.normalizer->apply(normal);
  normalized_.split(
      normal, [&](const AddedToken& t, std::size_t, std::size_t) { out.push_back(t.id); },
      [&](std::size_t begin, std::size_t end) {
        Pieces pieces(begin == 0 && end == normal.size() ? std::move(normal) : normal.substr(begin, end - begin), at_start && begin == 0);
        if (parts_.pre_tokenizer) parts_.pre_tokenizer->apply(pieces);
        for (const Pieces::Range r : pieces.ranges) parts_.model->encode(pieces.view(r), out);
      });
}

std::string_view PipelineTokenizer::spelling(std::int32_t id) const {
  if (!respelled_.empty())
    if (const auto it = respelled_.find(id); it != respelled_.end()) return it->second;
  return parts_.vocab->token(id);
}

// One decoder, one assembler: the text of ids, one after the other.
class PipelineTokenizer::Stream : public TextStream {
 public:
  Stream(const PipelineTokenizer& t, bool skip_special)
      : tokenizer_(t), skip_special_(skip_special), state_(t.parts_.decoder->start()), text_(t.parts_.decoder->replace_bytewise()) {}

  std::string push(std::int32_t id) override {
    if (!tokenizer_.parts_.vocab->has(id) || (skip_special_ && tokenizer_.is_special(id))) return {};
    token_ = tokenizer_.spelling(id);
    if (tokenizer_.is_plain(id)) state_->skip_start();
    else state_->push(token_);
    return text_.push(token_);
  }
  std::string flush() override {
    std::string out = text_.push(state_->finish());
    out += text_.flush();
    state_ = tokenizer_.parts_.decoder->start();
    return out;
  }

 private:
  const PipelineTokenizer& tokenizer_;
  bool skip_special_;
  std::unique_ptr<DecodeState> state_;
  Utf8Assembler text_;
  std::string token_;
};

std::unique_ptr<TextStream> PipelineTokenizer::stream(bool skip_special) const { return std::make_unique<Stream>(*this, skip_special); }

std::string PipelineTokenizer::decode(const std::vector<std::int32_t>& ids, bool skip_special) const {
  Stream s(*this, skip_special);
  std::string out;
  for (const std::int32_t id : ids) out += s.push(id);
  out += s.flush();
  return out;
}

std::optional<std::int32_t> PipelineTokenizer::id(std::string_view token) const {
  const std::int32_t id = parts_.vocab->find(token);
  return id == Vocab::kNone ? std::nullopt : std::optional(id);
}

std::string PipelineTokenizer::token_bytes(std::int32_t id) const {
  std::string token(spelling(id));
  if (!parts_.vocab->has(id) || is_plain(id)) return token;
  const auto state = parts_.decoder->start();
  state->skip_start();
  state->push(token);
  return token;
}

std::string PipelineTokenizer::chat_template(std::string_view name) const {
  const auto it = parts_.templates.find(name);
  return it == parts_.templates.end() ? std::string() : it->second;
}

}  // namespace qengine
