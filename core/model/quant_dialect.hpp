// QuantDialect: how one tool writes a quantization config that does not say what it is.
//
// Plugins bring these in their manifests (docs/plugin-authors.md, "dialect"), so that core knows no tool by name.
#pragma once

#include <string>
#include <vector>

namespace qengine {

struct QuantDialect {
  std::string quant_method;          // what such an object is, in lower case; "" when `file` is only a place to look
  std::string file;                  // where the object lies: config.json, or a file beside it; "" when this entry is about keys or tensors
  std::string at;                    // the key in that file under which it lies; "" or absent there: the whole file
  std::string key;                   // a key of the object that no other tool writes
  std::vector<std::string> tensors;  // endings of tensor names that only this method has all of; looked at when no key tells
  std::string owner;                 // the plugin, for messages
};

}  // namespace qengine
