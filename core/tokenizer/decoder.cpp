#include "core/tokenizer/decoder.hpp"

#include <vector>

#include "core/tokenizer/json_fields.hpp"
#include "core/tokenizer/pattern.hpp"
#include "core/tokenizer/unicode.hpp"

namespace qengine {
namespace {

// A decoder whose state is a copy of a prototype.
template <class State>
class Of : public Decoder {
 public:
  explicit Of(State state, bool bytewise = false) : state_(std::move(state)), bytewise_(bytewise) {}
  std::unique_ptr<DecodeState> start() const override { return std::make_unique<State>(state_); }
  bool replace_bytewise() const override { return bytewise_; }

 private:
  State state_;
  bool bytewise_;
};

template <class State>
std::unique_ptr<Decoder> of(State state, bool bytewise = false) {
  return std::make_unique<Of<State>>(std::move(state), bytewise);
}

struct JoinBySpace : DecodeState {
  bool first = true;
  void push(std::string& t) override {
    if (!first) t.insert(0, 1, ' ');
    first = false;
  }
  void skip_start() override { first = false; }
};

// Each character of the byte alphabet is its byte; a token with any other character stands for itself.
struct ByteLevel : DecodeState {
  void push(std::string& t) override {
    std::string bytes;
    for (std::size_t pos = 0; pos < t.size();) {
      if (!unicode::classify(t, pos).valid) return;
      const int b = unicode::char_to_byte(unicode::next(t, pos));
      if (b < 0) return;
      bytes += static_cast<char>(b);
    }
    t.swap(bytes);
  }
};

struct ByteFallback : DecodeState {
  void push(std::string& t) override {
    if (t.size() != 6 || !t.starts_with("<0x") || t[5] != '>') return;
    int value = 0;
    for (const char c : {t[3], t[4]}) {
      const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
      if (digit < 0) return;
      value = value * 16 + digit;
    }
    t.assign(1, static_cast<char>(value));
  }
};

struct Fuse : DecodeState {
  void push(std::string&) override {}
};

struct Replace : DecodeState {
  std::shared_ptr<const Pattern> pattern;
  std::string with;
  Replace(std::shared_ptr<const Pattern> p, std::string w) : pattern(std::move(p)), with(std::move(w)) {}
  void push(std::string& t) override {
    // A token that is part of a character cannot match.
    if (!pattern->is_regex() || unicode::is_valid(t)) replace_all(t, *pattern, with);
  }
};

// Takes `content` off the ends: of each token, or of the whole text where a step before fused it.
struct Strip : DecodeState {
  std::string content;
  std::int64_t start, stop;
  bool fused;
  std::int64_t left;     // still to be taken off the start of a fused text
  std::string held;      // the last `stop` occurrences, which may turn out to be the end

  Strip(std::string c, std::int64_t s, std::int64_t e, bool f) : content(std::move(c)), start(s), stop(e), fused(f), left(s) {}

  void push(std::string& t) override {
    if (!fused) {
      left = start;
      take_left(t);
      for (std::int64_t i = 0; i < stop && t.ends_with(content); ++i) t.resize(t.size() - content.size());
      return;
    }
    if (left > 0 && !t.empty()) {
      take_left(t);
      if (!t.empty()) left = 0;
    }
    if (stop > 0) {
      t.insert(0, held);
      std::size_t keep = t.size();
      for (std::int64_t i = 0; i < stop && std::string_view(t).substr(0, keep).ends_with(content); ++i) keep -= content.size();
      held = t.substr(keep);
      t.resize(keep);
    }
  }
  void skip_start() override {
    if (fused) left = 0;
  }

 private:
  void take_left(std::string& t) {
    std::size_t n = 0;
    for (; left > 0 && std::string_view(t).substr(n).starts_with(content); --left) n += content.size();
    t.erase(0, n);
  }
};

struct Metaspace : DecodeState {
  std::string mark;
  bool drop_first, first = true;
  Metaspace(std::string m, bool d) : mark(std::move(m)), drop_first(d) {}
  void push(std::string& t) override {
    replace_all(t, Pattern(mark, false), first && drop_first ? "" : " ");
    first = false;
  }
  void skip_start() override { first = false; }
};

// Spaces that English text does not want before punctuation, as BERT's clean-up takes them out.
void clean_up(std::string& t) {
  static constexpr std::pair<std::string_view, std::string_view> kTable[] = {
      {" .", "."}, {" ?", "?"}, {" !", "!"}, {" ,", ","}, {" ' ", "'"}, {" n't", "n't"}, {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kTable) replace_all(t, Pattern(std::string(from), false), to);
}

struct WordPiece : DecodeState {
  std::string prefix;
  bool cleanup, first = true;
  WordPiece(std::string p, bool c) : prefix(std::move(p)), cleanup(c) {}
  void push(std::string& t) override {
    if (!first) {
      if (t.starts_with(prefix)) t.erase(0, prefix.size());
      else t.insert(0, 1, ' ');
    }
    first = false;
    if (cleanup) clean_up(t);
  }
  void skip_start() override { first = false; }
};

struct Ctc : DecodeState {
  std::string pad, delimiter, last;
  bool cleanup, any = false;
  Ctc(std::string p, std::string d, bool c) : pad(std::move(p)), delimiter(std::move(d)), cleanup(c) {}
  void push(std::string& t) override {
    const std::string token = t;
    if (any && token == last) {
      t.clear();
    } else {
      replace_all(t, Pattern(pad, false), "");
      if (cleanup) {
        clean_up(t);
        replace_all(t, Pattern(delimiter, false), " ");
      }
    }
    last = token, any = true;
  }
};

// The suffix that ends a word is a space, but for the last word.
struct BpeSuffix : DecodeState {
  std::string suffix;
  bool space = false;
  explicit BpeSuffix(std::string s) : suffix(std::move(s)) {}
  void push(std::string& t) override {
    const bool ends = !suffix.empty() && t.ends_with(suffix);
    if (ends) t.resize(t.size() - suffix.size());
    replace_all(t, Pattern(suffix, false), " ");
    if (space) t.insert(0, 1, ' ');
    space = ends;
  }
};

class Chain : public Decoder {
 public:
  explicit Chain(std::vector<std::unique_ptr<Decoder>> steps) : steps_(std::move(steps)) {}
  std::unique_ptr<DecodeState> start() const override {
    auto s = std::make_unique<State>();
    for (const auto& d : steps_) s->steps.push_back(d->start());
    return s;
  }
  bool replace_bytewise() const override {
    for (const auto& d : steps_)
      if (d->replace_bytewise()) return true;
    return false;
  }

 private:
  struct State : DecodeState {
    std::vector<std::unique_ptr<DecodeState>> steps;
    void push(std::string& t) override {
      for (const auto& s : steps) s->push(t);
    }
    std::string finish() override {
      std::string rest;
      for (const auto& s : steps) {
        if (!rest.empty()) s->push(rest);
        rest += s->finish();
      }
      return rest;
    }
    void skip_start() override {
      for (const auto& s : steps) s->skip_start();
    }
  };
  std::vector<std::unique_ptr<Decoder>> steps_;
};

std::unique_ptr<Decoder> make(const Json& json, const std::string& where, bool& fused) {
  const JsonFields f(json, where);
  const std::string type = f.string("type");
  if (type == "ByteLevel") return fused = true, of(ByteLevel());
  if (type == "ByteFallback") return of(ByteFallback(), true);
  if (type == "Fuse") return fused = true, of(Fuse());
  if (type == "Replace") {
    auto pattern = std::make_shared<const Pattern>(parse_pattern(f.require("pattern"), f.path("pattern")));
    if (fused && (pattern->is_regex() || (!pattern->text().empty() && unicode::length(static_cast<unsigned char>(pattern->text()[0])) != pattern->text().size())))
      throw Error("E220", where + " is a Replace of more than one character behind a step that joins all tokens")
          .hint("such a text cannot be streamed; put Replace before Fuse or ByteLevel");
    return of(Replace(std::move(pattern), f.string("content")));
  }
  if (type == "Strip") {
    const std::string content = f.string("content");
    if (content.empty()) f.reject("content", f.require("content"), "one character");
    return of(Strip(content, f.integer("start", 0), f.integer("stop", 0), fused));
  }
  if (type == "Metaspace") {
    const std::string scheme = f.string("prepend_scheme", f.boolean("add_prefix_space", true) ? "always" : "never");
    return of(Metaspace(f.string("replacement", "\u2581"), scheme != "never"));
  }
  if (type == "WordPiece") return of(WordPiece(f.string("prefix", "##"), f.boolean("cleanup", true)));
  if (type == "CTC") return of(Ctc(f.string("pad_token", "<pad>"), f.string("word_delimiter_token", "|"), f.boolean("cleanup", true)));
  if (type == "BPEDecoder") return of(BpeSuffix(f.string("suffix", "</w>")));
  if (type == "Sequence") {
    std::vector<std::unique_ptr<Decoder>> steps;
    const Json& list = f.array("decoders");
    for (std::size_t i = 0; i < list.size(); ++i) steps.push_back(make(list[i], where + ".decoders[" + std::to_string(i) + "]", fused));
    return std::make_unique<Chain>(std::move(steps));
  }
  throw Error("E220", where + ".type is \"" + type + "\", which is not a known decoder")
      .from("known: ByteLevel ByteFallback Fuse Replace Strip Metaspace WordPiece CTC BPEDecoder Sequence");
}

}  // namespace

std::unique_ptr<Decoder> make_decoder(const Json& json, const std::string& where) {
  if (json.is_null()) return of(JoinBySpace());
  bool fused = false;
  return make(json, where, fused);
}

void Utf8Assembler::replace(std::string& out, std::size_t bytes) const {
  for (std::size_t i = 0; i < (bytewise_ ? bytes : 1); ++i) unicode::append(out, unicode::kReplacement);
}

std::string Utf8Assembler::push(std::string_view bytes) {
  std::string joined;
  if (!held_.empty()) {
    joined = held_;
    joined += bytes;
    held_.clear();
    bytes = joined;
  }
  std::string out;
  for (std::size_t pos = 0; pos < bytes.size();) {
    const unicode::Sequence s = unicode::classify(bytes, pos);
    if (s.cut) {
      held_ = bytes.substr(pos);
      break;
    }
    if (s.valid) out.append(bytes, pos, s.size);
    else replace(out, s.size);
    pos += s.size;
  }
  return out;
}

std::string Utf8Assembler::flush() {
  std::string out;
  if (!held_.empty()) replace(out, held_.size());
  held_.clear();
  return out;
}

}  // namespace qengine
