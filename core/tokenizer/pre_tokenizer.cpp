#include "core/tokenizer/pre_tokenizer.hpp"

#include <unicode/uscript.h>

#include "core/tokenizer/json_fields.hpp"
#include "core/tokenizer/pattern.hpp"
#include "core/tokenizer/patterns.hpp"
#include "core/tokenizer/unicode.hpp"

namespace qengine {
namespace {

using Range = Pieces::Range;

enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

Behavior parse_behavior(const JsonFields& f, const char* otherwise) {
  const std::string b = f.string("behavior", otherwise);
  if (b == "Removed") return Behavior::kRemoved;
  if (b == "Isolated") return Behavior::kIsolated;
  if (b == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (b == "MergedWithNext") return Behavior::kMergedWithNext;
  if (b == "Contiguous") return Behavior::kContiguous;
  throw Error("E220", f.path("behavior") + " is \"" + b + "\", expected Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

// Cuts one range into matches and what lies between them, and applies a behavior.
class Cutter {
 public:
  Cutter(Behavior behavior, bool invert) : behavior_(behavior), invert_(invert) {}

  void start(Range whole) { whole_ = whole, done_ = whole.begin, parts_.clear(); }
  void match(std::uint32_t begin, std::uint32_t end) {  // in the text's own positions, left to right
    if (begin > done_) parts_.push_back({{done_, begin}, invert_});
    parts_.push_back({{begin, end}, !invert_});
    done_ = end;
  }
  void finish(std::vector<Range>& out) {
    if (done_ < whole_.end) parts_.push_back({{done_, whole_.end}, invert_});
    const auto emit = [&](Range r) {
      if (r.begin < r.end) out.push_back(r);
    };
    switch (behavior_) {
      case Behavior::kIsolated:
        for (const Part& p : parts_) emit(p.range);
        break;
      case Behavior::kRemoved:
        for (const Part& p : parts_)
          if (!p.matched) emit(p.range);
        break;
      case Behavior::kContiguous:
        for (std::size_t i = 0, j; i < parts_.size(); i = j) {
          for (j = i + 1; j < parts_.size() && parts_[j].matched == parts_[i].matched;) ++j;
          emit({parts_[i].range.begin, parts_[j - 1].range.end});
        }
        break;
      case Behavior::kMergedWithPrevious: {
        // Of matches in a row only the first joins what stands before it.
        std::vector<Range> joined;
        bool before = false;
        for (const Part& p : parts_) {
          if (p.matched && !before && !joined.empty()) joined.back().end = p.range.end;
          else joined.push_back(p.range);
          before = p.matched;
        }
        for (const Range r : joined) emit(r);
        break;
      }
      case Behavior::kMergedWithNext: {
        std::vector<Range> joined;  // right to left
        bool after = false;
        for (auto p = parts_.rbegin(); p != parts_.rend(); ++p) {
          if (p->matched && !after && !joined.empty()) joined.back().begin = p->range.begin;
          else joined.push_back(p->range);
          after = p->matched;
        }
        for (auto r = joined.rbegin(); r != joined.rend(); ++r) emit(*r);
        break;
      }
    }
  }

 private:
  struct Part {
    Range range;
    bool matched;
  };
  Behavior behavior_;
  bool invert_;
  Range whole_{};
  std::uint32_t done_ = 0;
  std::vector<Part> parts_;
};

// find(view, match): calls match(begin, end) for each match, positions within the view.
template <class Find>
void cut(Pieces& p, Behavior behavior, bool invert, Find&& find) {
  Cutter cutter(behavior, invert);
  std::vector<Range> out;
  out.reserve(p.ranges.size() * 2);
  for (const Range r : p.ranges) {
    cutter.start(r);
    find(p.view(r), [&](std::size_t begin, std::size_t end) {
      cutter.match(r.begin + static_cast<std::uint32_t>(begin), r.begin + static_cast<std::uint32_t>(end));
    });
    cutter.finish(out);
  }
  p.ranges.swap(out);
}

template <class Is>
void cut_characters(Pieces& p, Behavior behavior, Is&& is) {
  cut(p, behavior, false, [&](std::string_view v, auto match) {
    for (std::size_t pos = 0; pos < v.size();) {
      const std::size_t start = pos;
      if (is(unicode::next(v, pos))) match(start, pos);
    }
  });
}

// Rewrites every range: write(view, index, out) appends what becomes of it.
template <class Write>
void rewrite(Pieces& p, Write&& write) {
  std::string text;
  text.reserve(p.text.size() * 3 / 2 + 16);
  for (std::size_t i = 0; i < p.ranges.size(); ++i) {
    const auto begin = static_cast<std::uint32_t>(text.size());
    write(p.view(p.ranges[i]), i, text);
    p.ranges[i] = {begin, static_cast<std::uint32_t>(text.size())};
  }
  p.text.swap(text);
}

class Split : public PreTokenizer {
 public:
  Split(Pattern pattern, Behavior behavior, bool invert) : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  void apply(Pieces& p) const override {
    cut(p, behavior_, invert_, [&](std::string_view v, auto match) { pattern_.each(v, match); });
  }

 private:
  Pattern pattern_;
  Behavior behavior_;
  bool invert_;
};

class ByteLevel : public PreTokenizer {
 public:
  ByteLevel(bool add_prefix_space, bool use_regex) : prefix_(add_prefix_space) {
    if (use_regex) regex_.emplace_back(std::string(patterns::kGpt2));
  }
  void apply(Pieces& p) const override {
    if (prefix_)
      rewrite(p, [](std::string_view v, std::size_t, std::string& out) {
        if (v.front() != ' ') out += ' ';
        out += v;
      });
    for (const Regex& r : regex_)
      cut(p, Behavior::kIsolated, false, [&](std::string_view v, auto match) { r.each(v, match); });
    rewrite(p, [](std::string_view v, std::size_t, std::string& out) {
      for (const char b : v) unicode::append(out, unicode::byte_to_char(static_cast<unsigned char>(b)));
    });
  }

 private:
  bool prefix_;
  std::vector<Regex> regex_;  // none or one
};

class Metaspace : public PreTokenizer {
 public:
  enum class Scheme { kFirst, kNever, kAlways };
  explicit Metaspace(const JsonFields& f) : mark_(f.string("replacement", "\u2581")), split_(f.boolean("split", true)) {
    if (mark_.empty()) throw Error("E220", f.path("replacement") + " is empty, expected one character");
    const std::string s = f.string("prepend_scheme", f.boolean("add_prefix_space", true) ? "always" : "never");
    if (s == "first") scheme_ = Scheme::kFirst;
    else if (s == "never") scheme_ = Scheme::kNever;
    else if (s == "always") scheme_ = Scheme::kAlways;
    else throw Error("E220", f.path("prepend_scheme") + " is \"" + s + "\", expected first, never or always");
  }
  void apply(Pieces& p) const override {
    const bool starts_input = p.at_start && !p.ranges.empty() && p.ranges[0].begin == 0;
    rewrite(p, [&](std::string_view v, std::size_t i, std::string& out) {
      const bool prepend = scheme_ == Scheme::kAlways || (scheme_ == Scheme::kFirst && i == 0 && starts_input);
      if (prepend && v.front() != ' ' && !v.starts_with(mark_)) out += mark_;
      for (const char c : v) c == ' ' ? out.append(mark_) : out.append(1, c);
    });
    if (split_)
      cut(p, Behavior::kMergedWithNext, false, [&](std::string_view v, auto match) {
        for (std::size_t at = v.find(mark_); at != std::string_view::npos; at = v.find(mark_, at + mark_.size())) match(at, at + mark_.size());
      });
  }

 private:
  std::string mark_;
  bool split_;
  Scheme scheme_ = Scheme::kAlways;
};

template <class F>
class Simple : public PreTokenizer {
 public:
  explicit Simple(F f) : f_(std::move(f)) {}
  void apply(Pieces& p) const override { f_(p); }

 private:
  F f_;
};

template <class F>
std::unique_ptr<PreTokenizer> simple(F f) {
  return std::make_unique<Simple<F>>(std::move(f));
}

void bert(Pieces& p) {
  cut_characters(p, Behavior::kRemoved, unicode::is_whitespace);
  cut_characters(p, Behavior::kIsolated, unicode::is_punctuation);
}

// Runs of word characters, and runs of what is neither word nor space.
void whitespace(Pieces& p) {
  cut(p, Behavior::kRemoved, true, [](std::string_view v, auto match) {
    enum { kSpace, kWord, kOther } before = kSpace;
    std::size_t begin = 0;
    for (std::size_t pos = 0; pos < v.size();) {
      const std::size_t start = pos;
      const char32_t c = unicode::next(v, pos);
      const auto now = unicode::is_word(c) ? kWord : unicode::is_whitespace(c) ? kSpace : kOther;
      if (now == before) continue;
      if (before != kSpace) match(begin, start);
      begin = start, before = now;
    }
    if (before != kSpace) match(begin, v.size());
  });
}

// Cuts where the script changes; spaces go with what stands before them (at the start they are
// dropped), kana counts as Han.
void unicode_scripts(Pieces& p) {
  constexpr int kAny = -1, kNone = -2;
  cut(p, Behavior::kRemoved, true, [&](std::string_view v, auto match) {
    int last = kNone;
    std::size_t begin = v.size();
    for (std::size_t pos = 0; pos < v.size();) {
      const std::size_t start = pos;
      const char32_t c = unicode::next(v, pos);
      int script = c == ' ' ? kAny : c == 0x30FC ? USCRIPT_HAN : unicode::script(c);
      if (script == USCRIPT_HIRAGANA || script == USCRIPT_KATAKANA) script = USCRIPT_HAN;
      if (script == kAny || script == USCRIPT_UNKNOWN) continue;
      if (last == kNone) begin = start;
      else if (last != script) match(begin, start), begin = start;
      last = script;
    }
    if (begin < v.size()) match(begin, v.size());
  });
}

class All : public PreTokenizer {
 public:
  explicit All(std::vector<std::unique_ptr<PreTokenizer>> steps) : steps_(std::move(steps)) {}
  void apply(Pieces& p) const override {
    for (const auto& s : steps_) s->apply(p);
  }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> steps_;
};

}  // namespace

std::unique_ptr<PreTokenizer> make_pre_tokenizer(const Json& json, const std::string& where) {
  if (json.is_null()) return nullptr;
  const JsonFields f(json, where);
  const std::string type = f.string("type");
  if (type == "ByteLevel") return std::make_unique<ByteLevel>(f.boolean("add_prefix_space", true), f.boolean("use_regex", true));
  if (type == "Split")
    return std::make_unique<Split>(parse_pattern(f.require("pattern"), f.path("pattern")), parse_behavior(f, "Isolated"), f.boolean("invert", false));
  if (type == "Digits") {
    const Behavior b = f.boolean("individual_digits", false) ? Behavior::kIsolated : Behavior::kContiguous;
    return simple([b](Pieces& p) { cut_characters(p, b, unicode::is_numeric); });
  }
  if (type == "Metaspace") return std::make_unique<Metaspace>(f);
  if (type == "Whitespace") return simple(whitespace);
  if (type == "WhitespaceSplit") return simple([](Pieces& p) { cut_characters(p, Behavior::kRemoved, unicode::is_whitespace); });
  if (type == "Punctuation") {
    const Behavior b = parse_behavior(f, "Isolated");
    return simple([b](Pieces& p) { cut_characters(p, b, unicode::is_punctuation); });
  }
  if (type == "BertPreTokenizer") return simple(bert);
  if (type == "UnicodeScripts") return simple(unicode_scripts);
  if (type == "CharDelimiterSplit") {
    const std::string d = f.string("delimiter");
    if (d.empty() || unicode::length(static_cast<unsigned char>(d[0])) != d.size())
      f.reject("delimiter", f.require("delimiter"), "one character");
    return std::make_unique<Split>(Pattern(d, false), Behavior::kRemoved, false);
  }
  if (type == "FixedLength") {
    const std::int64_t n = f.integer("length", 5);
    if (n < 1) f.reject("length", f.require("length"), "a positive integer");
    return simple([n](Pieces& p) {
      cut(p, Behavior::kIsolated, false, [n](std::string_view v, auto match) {
        for (std::size_t pos = 0; pos < v.size();) {
          const std::size_t start = pos;
          for (std::int64_t i = 0; i < n && pos < v.size(); ++i) unicode::next(v, pos);
          match(start, pos);
        }
      });
    });
  }
  if (type == "Sequence") {
    std::vector<std::unique_ptr<PreTokenizer>> steps;
    const Json& list = f.array("pretokenizers");
    for (std::size_t i = 0; i < list.size(); ++i)
      if (auto step = make_pre_tokenizer(list[i], where + ".pretokenizers[" + std::to_string(i) + "]")) steps.push_back(std::move(step));
    return std::make_unique<All>(std::move(steps));
  }
  throw Error("E220", where + ".type is \"" + type + "\", which is not a known pre-tokenizer")
      .from("known: ByteLevel Split Digits Metaspace Whitespace WhitespaceSplit Punctuation BertPreTokenizer UnicodeScripts CharDelimiterSplit FixedLength Sequence");
}

}  // namespace qengine
