#include "core/tokenizer/normalizer.hpp"

#include <vector>

#include "core/tokenizer/json_fields.hpp"
#include "core/tokenizer/pattern.hpp"
#include "core/tokenizer/precompiled.hpp"
#include "core/tokenizer/unicode.hpp"

namespace qengine {
namespace {

template <class F>
class Simple : public Normalizer {
 public:
  explicit Simple(F f) : f_(std::move(f)) {}
  void apply(std::string& text) const override { f_(text); }

 private:
  F f_;
};

template <class F>
std::unique_ptr<Normalizer> simple(F f) {
  return std::make_unique<Simple<F>>(std::move(f));
}

// Rewrites the text character by character; `map` appends what becomes of one.
template <class Map>
void map_characters(std::string& text, Map&& map) {
  std::string out;
  out.reserve(text.size() + text.size() / 8);
  for (std::size_t pos = 0; pos < text.size();) map(unicode::next(text, pos), out);
  text.swap(out);
}

void lowercase(std::string& text) {
  map_characters(text, [](char32_t c, std::string& out) {
    char32_t second = 0;
    unicode::append(out, unicode::lower(c, second));
    if (second) unicode::append(out, second);
  });
}

void strip_accents(std::string& text) {
  map_characters(text, [](char32_t c, std::string& out) {
    if (!unicode::is_mark(c)) unicode::append(out, c);
  });
}

void nmt(std::string& text) {
  map_characters(text, [](char32_t c, std::string& out) {
    if ((c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F) return;
    const bool space = c == 0x9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
                       c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
    unicode::append(out, space ? U' ' : c);
  });
}

class Replace : public Normalizer {
 public:
  explicit Replace(const JsonFields& f)
      : content_(f.string("content")), pattern_(parse_pattern(f.require("pattern"), f.path("pattern"))) {}
  void apply(std::string& text) const override { replace_all(text, pattern_, content_); }

 private:
  std::string content_;
  Pattern pattern_;
};

class Strip : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  void apply(std::string& text) const override {
    std::size_t begin = 0, end = text.size();
    while (left_ && begin < end) {
      std::size_t pos = begin;
      if (!unicode::is_whitespace(unicode::next(text, pos))) break;
      begin = pos;
    }
    while (right_ && end > begin) {
      std::size_t start = 0;
      if (!unicode::is_whitespace(unicode::previous(text, end, start))) break;
      end = start;
    }
    text = text.substr(begin, end - begin);
  }

 private:
  bool left_, right_;
};

class Bert : public Normalizer {
 public:
  explicit Bert(const JsonFields& f)
      : clean_(f.boolean("clean_text", true)),
        cjk_(f.boolean("handle_chinese_chars", true)),
        lowercase_(f.boolean("lowercase", true)),
        accents_(f.boolean("strip_accents", lowercase_)) {}
  void apply(std::string& text) const override {
    if (clean_)
      map_characters(text, [](char32_t c, std::string& out) {
        const bool white = c == '\t' || c == '\n' || c == '\r';
        if (c == 0 || c == unicode::kReplacement || (!white && unicode::is_control(c))) return;
        unicode::append(out, unicode::is_whitespace(c) ? U' ' : c);
      });
    if (cjk_)
      map_characters(text, [](char32_t c, std::string& out) {
        const bool apart = unicode::is_cjk(c);
        if (apart) out += ' ';
        unicode::append(out, c);
        if (apart) out += ' ';
      });
    if (accents_) {
      text = unicode::normalize(text, unicode::Form::kNfd);
      map_characters(text, [](char32_t c, std::string& out) {
        if (!unicode::is_nonspacing_mark(c)) unicode::append(out, c);
      });
    }
    if (lowercase_) lowercase(text);
  }

 private:
  bool clean_, cjk_, lowercase_, accents_;
};

class All : public Normalizer {
 public:
  explicit All(std::vector<std::unique_ptr<Normalizer>> steps) : steps_(std::move(steps)) {}
  void apply(std::string& text) const override {
    for (const auto& s : steps_) s->apply(text);
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> steps_;
};

}  // namespace

std::unique_ptr<Normalizer> make_normalizer(const Json& json, const std::string& where) {
  if (json.is_null()) return nullptr;
  const JsonFields f(json, where);
  const std::string type = f.string("type");
  using unicode::Form;
  const auto form = [](Form form) { return simple([form](std::string& t) { t = unicode::normalize(t, form); }); };
  if (type == "NFC") return form(Form::kNfc);
  if (type == "NFD") return form(Form::kNfd);
  if (type == "NFKC") return form(Form::kNfkc);
  if (type == "NFKD") return form(Form::kNfkd);
  if (type == "Lowercase") return simple(lowercase);
  if (type == "StripAccents") return simple(strip_accents);
  if (type == "Nmt") return simple(nmt);
  if (type == "ByteLevel") return simple([](std::string& t) { t = unicode::bytes_to_chars(t); });
  if (type == "Strip") return std::make_unique<Strip>(f.boolean("strip_left", true), f.boolean("strip_right", true));
  if (type == "Prepend")
    return simple([prefix = f.string("prepend")](std::string& t) {
      if (!t.empty()) t.insert(0, prefix);
    });
  if (type == "Replace") return std::make_unique<Replace>(f);
  if (type == "BertNormalizer") return std::make_unique<Bert>(f);
  if (type == "Precompiled") return make_precompiled(f.string("precompiled_charsmap"), f.path("precompiled_charsmap"));
  if (type == "Sequence") {
    std::vector<std::unique_ptr<Normalizer>> steps;
    const Json& list = f.array("normalizers");
    for (std::size_t i = 0; i < list.size(); ++i)
      if (auto step = make_normalizer(list[i], where + ".normalizers[" + std::to_string(i) + "]")) steps.push_back(std::move(step));
    return std::make_unique<All>(std::move(steps));
  }
  throw Error("E220", where + ".type is \"" + type + "\", which is not a known normalizer")
      .from("known: NFC NFD NFKC NFKD Lowercase Strip StripAccents Prepend Replace Precompiled Nmt BertNormalizer ByteLevel Sequence");
}

}  // namespace qengine
