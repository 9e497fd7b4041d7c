#include "core/tokenizer/precompiled.hpp"

#include <unicode/brkiter.h>
#include <unicode/utext.h>

#include <cstring>
#include <optional>
#include <vector>

#include "core/base/error.hpp"
#include "core/tokenizer/unicode.hpp"

namespace qengine {
namespace {

std::string decode_base64(const std::string& text, const std::string& where) {
  std::string out;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    int v;
    if (c >= 'A' && c <= 'Z') v = c - 'A';
    else if (c >= 'a' && c <= 'z') v = c - 'a' + 26;
    else if (c >= '0' && c <= '9') v = c - '0' + 52;
    else if (c == '+') v = 62;
    else if (c == '/') v = 63;
    else if (c == '=') break;
    else throw Error("E220", where + " is not base64");
    bits = bits << 6 | static_cast<std::uint32_t>(v);
    if ((count += 6) >= 8) out += static_cast<char>(bits >> (count -= 8) & 0xFF);
  }
  return out;
}

class Precompiled : public Normalizer {
 public:
  Precompiled(const std::string& bytes, const std::string& where) {
    std::uint32_t size = 0;
    if (bytes.size() >= 4) std::memcpy(&size, bytes.data(), 4);
    if (bytes.size() < 4 || size % 4 != 0 || size > bytes.size() - 4)
      throw Error("E220", where + " has " + std::to_string(bytes.size()) + " bytes, too few for its own header");
    units_.resize(size / 4);
    std::memcpy(units_.data(), bytes.data() + 4, size);
    strings_ = bytes.substr(4 + size);
  }

  void apply(std::string& text) const override {
    UErrorCode status = U_ZERO_ERROR;
    UText* utext = utext_openUTF8(nullptr, text.data(), static_cast<int64_t>(text.size()), &status);
    std::unique_ptr<icu::BreakIterator> clusters(icu::BreakIterator::createCharacterInstance(icu::Locale::getRoot(), status));
    if (U_SUCCESS(status)) clusters->setText(utext, status);
    if (U_FAILURE(status)) {
      utext_close(utext);
      throw Error("E000", std::string("no grapheme boundaries: ") + u_errorName(status));
    }
    std::string out;
    out.reserve(text.size());
    for (std::int32_t begin = clusters->first(), end = clusters->next(); end != icu::BreakIterator::DONE; begin = end, end = clusters->next()) {
      const std::string_view cluster = std::string_view(text).substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
      if (cluster.size() < 6)  // longer ones are never looked up as a whole
        if (const auto to = replacement(cluster)) {
          out += *to;
          continue;
        }
      for (std::size_t pos = 0; pos < cluster.size();) {
        const std::size_t start = pos;
        unicode::next(cluster, pos);
        const std::string_view c = cluster.substr(start, pos - start);
        out += replacement(c).value_or(c);
      }
    }
    utext_close(utext);
    text = unicode::sanitize(out);
  }

 private:
  // What the shortest entry that `key` begins with stands for.
  std::optional<std::string_view> replacement(std::string_view key) const {
    const auto offset = [](std::uint32_t unit) { return unit >> 10 << ((unit & 1u << 9) >> 6); };
    if (units_.empty()) return std::nullopt;
    std::size_t node = offset(units_[0]);
    for (const char k : key) {
      const auto b = static_cast<unsigned char>(k);
      node ^= b;
      if (b == 0 || node >= units_.size()) return std::nullopt;
      const std::uint32_t unit = units_[node];
      if ((unit & (1u << 31 | 0xFF)) != b) return std::nullopt;
      node ^= offset(unit);
      if (unit >> 8 & 1) {  // has a leaf
        if (node >= units_.size()) return std::nullopt;
        const std::uint32_t at = units_[node] & 0x7FFFFFFF;
        if (at >= strings_.size()) return std::nullopt;
        return std::string_view(strings_).substr(at, strings_.find('\0', at) - at);
      }
    }
    return std::nullopt;
  }

  std::vector<std::uint32_t> units_;
  std::string strings_;
};

}  // namespace

std::unique_ptr<Normalizer> make_precompiled(const std::string& base64, const std::string& where) {
  return std::make_unique<Precompiled>(decode_base64(base64, where), where);
}

}  // namespace qengine
