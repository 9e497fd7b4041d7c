#include "core/plugin_host/match.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <utility>

namespace qengine {
namespace {

constexpr std::size_t kMaxPattern = 4096, kMaxName = 1024, kMaxCached = 4096;
// Far above what a rule about module names needs, far below what would be noticed (under a millisecond).
constexpr std::uint32_t kMatchLimit = 20000, kDepthLimit = 1000, kHeapLimitKiB = 1024;

struct Fused {
  std::string_view whole;
  std::array<std::string_view, 3> parts;
};
constexpr Fused kFused[] = {{"qkv_proj", {".q_proj", ".k_proj", ".v_proj"}}, {"gate_up_proj", {".gate_proj", ".up_proj"}}};

bool strip(std::string_view& s, std::string_view prefix) {
  if (!s.starts_with(prefix)) return false;
  s.remove_prefix(prefix.size());
  return true;
}

// [a-z], [!0-9]: true when `c` is in the class that starts behind p[i - 1] == '['. Moves i behind ']'.
// An unclosed bracket is an ordinary character.
bool in_class(std::string_view p, std::size_t& i, char c, bool& closed) {
  std::size_t j = i;
  const bool negated = j < p.size() && (p[j] == '!' || p[j] == '^');
  if (negated) ++j;
  bool hit = false;
  for (bool first = true; j < p.size() && (first || p[j] != ']'); first = false) {
    const char lo = p[j++];
    char hi = lo;
    if (j + 1 < p.size() && p[j] == '-' && p[j + 1] != ']') {
      hi = p[j + 1];
      j += 2;
    }
    hit |= lo <= c && c <= hi;
  }
  closed = j < p.size();
  if (closed) i = j + 1;
  return hit != negated;
}

bool glob(std::string_view p, std::string_view s) {
  std::size_t i = 0, j = 0, star = std::string_view::npos, from = 0;  // after a star: where to resume
  while (j < s.size()) {
    bool ok = false;
    if (i < p.size()) {
      if (p[i] == '*') {
        star = ++i;
        from = j;
        continue;
      }
      std::size_t next = i + 1;
      if (p[i] == '?') {
        ok = true;
      } else if (p[i] == '[') {
        bool closed = false;
        ok = in_class(p, next, s[j], closed);
        if (!closed) ok = s[j] == '[';
      } else {
        ok = p[i] == s[j];
      }
      if (ok) i = next;
    }
    if (ok) {
      ++j;
    } else if (star != std::string_view::npos) {
      i = star;
      j = ++from;
    } else {
      return false;
    }
  }
  while (i < p.size() && p[i] == '*') ++i;
  return i == p.size();
}

}  // namespace

std::string_view strip_model_prefix(std::string_view name) {
  while (strip(name, "model.") || strip(name, "language_model.")) {
  }
  return name;
}

struct Matcher::Compiled {
  struct Code {
    pcre2_code* code = nullptr;
    std::string problem;
  };
  std::mutex mutex;
  std::map<std::string, Code, std::less<>> by_pattern;
  pcre2_match_context* limits = nullptr;

  Compiled() : limits(pcre2_match_context_create(nullptr)) {
    pcre2_set_match_limit(limits, kMatchLimit);
    pcre2_set_depth_limit(limits, kDepthLimit);
    pcre2_set_heap_limit(limits, kHeapLimitKiB);
  }
  ~Compiled() {
    clear();
    pcre2_match_context_free(limits);
  }
  void clear() {
    for (auto& [pattern, c] : by_pattern) pcre2_code_free(c.code);
    by_pattern.clear();
  }

  // REQUIRES: mutex is held, which also keeps the code alive.
  const Code& get(std::string_view pattern) {
    if (const auto it = by_pattern.find(pattern); it != by_pattern.end()) return it->second;
    if (by_pattern.size() >= kMaxCached) clear();
    Code& c = by_pattern[std::string(pattern)];
    int error = 0;
    PCRE2_SIZE where = 0;
    c.code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                           PCRE2_UTF | PCRE2_ANCHORED | PCRE2_NEVER_BACKSLASH_C, &error, &where, nullptr);
    if (!c.code) {
      char text[256] = "";
      pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(text), sizeof text);
      c.problem = std::string(text) + " at position " + std::to_string(where);
    }
    return c;
  }
};

Matcher::Matcher() : compiled_(std::make_unique<Compiled>()) {}
Matcher::~Matcher() = default;

bool Matcher::matches(std::string_view pattern, std::string_view name, std::string* problem) const {
  if (matches_one(pattern, name, problem)) return true;
  // Only where the rule spells the whole name out: ".*v_proj" would fit qkv_proj too, and does not mean q_proj.
  for (const auto& [whole, parts] : kFused) {
    if (pattern.find(whole) == std::string_view::npos) continue;
    for (const std::string_view part : parts)
      if (!part.empty() && name.ends_with(part) &&
          matches_one(pattern, std::string(name.substr(0, name.size() - part.size() + 1)) + std::string(whole), problem))
        return true;
  }
  return false;
}

bool Matcher::matches_one(std::string_view pattern, std::string_view name, std::string* problem) const {
  const auto fail = [&](std::string why) {
    if (problem) *problem = std::move(why);
    return false;
  };
  if (pattern.size() > kMaxPattern) return fail("longer than 4096 bytes");
  if (name.size() > kMaxName) return false;
  const std::string_view bare = strip_model_prefix(name);

  std::string_view expression = pattern;
  if (!strip(expression, "re:")) {
    if (pattern.find_first_of("*?[") == std::string_view::npos) return strip_model_prefix(pattern) == bare;
    return glob(pattern, name) || glob(strip_model_prefix(pattern), bare);
  }

  const std::lock_guard lock(compiled_->mutex);
  const Compiled::Code& c = compiled_->get(expression);
  if (!c.code) return fail(c.problem);
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  int found = PCRE2_ERROR_NOMATCH;
  const std::string b(bare);
  for (const std::string& spelling :
       {std::string(name), b, "model." + b, "model.language_model." + b, "language_model.model." + b}) {
    found = pcre2_match(c.code, reinterpret_cast<PCRE2_SPTR>(spelling.data()), spelling.size(), 0, 0, data,
                        compiled_->limits);
    if (found != PCRE2_ERROR_NOMATCH) break;
  }
  pcre2_match_data_free(data);
  if (found >= 0) return true;
  if (found == PCRE2_ERROR_NOMATCH) return false;
  char text[256] = "";
  pcre2_get_error_message(found, reinterpret_cast<PCRE2_UCHAR*>(text), sizeof text);
  return fail(text);
}

}  // namespace qengine
