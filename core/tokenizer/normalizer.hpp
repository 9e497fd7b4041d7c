// Normalizers: what tokenizer.json does to the text before it is cut into pre-tokens (formats.md 2.7).
#pragma once

#include <memory>
#include <string>

#include "core/model/checkpoint.hpp"  // Json

namespace qengine {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual void apply(std::string& text) const = 0;  // well-formed UTF-8 in and out; thread-safe
};

// nullptr for null. Throws Error E220 naming the kind or the field.
std::unique_ptr<Normalizer> make_normalizer(const Json& json, const std::string& where = "normalizer");

}  // namespace qengine
