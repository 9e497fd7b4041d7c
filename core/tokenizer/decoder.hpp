// Decoders: how tokens become text again (formats.md 2.7).
//
// Every kind is a stream: it is given one token after the other and says what each adds, as bytes. A
// whole text is decoded by the same steps, so that streamed and whole text cannot differ. The bytes
// become text in Utf8Assembler.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "core/model/checkpoint.hpp"  // Json

namespace qengine {

class DecodeState {
 public:
  virtual ~DecodeState() = default;
  // Rewrites one token into what it adds to the text now.
  virtual void push(std::string& token) = 0;
  // What was held back until the last token was known.
  virtual std::string finish() { return {}; }
  // The next token is not the first of the text.
  virtual void skip_start() {}
};

class Decoder {
 public:
  virtual ~Decoder() = default;
  virtual std::unique_ptr<DecodeState> start() const = 0;  // thread-safe
  // Each byte of an ill-formed run becomes one U+FFFD (ByteFallback), not each maximal subpart.
  virtual bool replace_bytewise() const { return false; }
};

// null: tokens joined by spaces. Throws Error E220 naming the kind or the field.
std::unique_ptr<Decoder> make_decoder(const Json& json, const std::string& where = "decoder");

// Bytes in, whole characters out: an incomplete one is held back, an ill-formed part becomes U+FFFD.
class Utf8Assembler {
 public:
  explicit Utf8Assembler(bool bytewise = false) : bytewise_(bytewise) {}
  std::string push(std::string_view bytes);
  std::string flush();

 private:
  void replace(std::string& out, std::size_t bytes) const;
  bool bytewise_;
  std::string held_;  // the beginning of one character
};

}  // namespace qengine
