// Pre-tokenizers: how tokenizer.json cuts normalized text into pre-tokens (formats.md 2.7).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/model/checkpoint.hpp"  // Json

namespace qengine {

// A text and the ranges of it that are pre-tokens so far, left to right. Steps that only cut change
// the ranges; steps that rewrite (ByteLevel, Metaspace) change both.
struct Pieces {
  struct Range {
    std::uint32_t begin, end;
  };
  std::string text;
  std::vector<Range> ranges;
  bool at_start = false;  // the text begins where the whole input does

  Pieces(std::string whole, bool start) : text(std::move(whole)), at_start(start) {
    if (!text.empty()) ranges.push_back({0, static_cast<std::uint32_t>(text.size())});
  }
  std::string_view view(Range r) const { return std::string_view(text).substr(r.begin, r.end - r.begin); }
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void apply(Pieces& pieces) const = 0;  // thread-safe
};

// nullptr for null. Throws Error E220 naming the kind or the field.
std::unique_ptr<PreTokenizer> make_pre_tokenizer(const Json& json, const std::string& where = "pre_tokenizer");

}  // namespace qengine
