// Reading one JSON object of a tokenizer file: every wrong type is an Error that names the field.
#pragma once

#include <string>
#include <string_view>

#include "core/base/error.hpp"
#include "core/model/checkpoint.hpp"  // Json

namespace qengine {

// `e`, said to be about `file` unless it names one already.
inline Error in_file(const Error& e, const std::string& file) {
  if (!e.find("in").empty()) return e;
  Error named(e.code(), e.message());
  named.in(file);
  for (const auto& [key, text] : e.lines()) named.line(key, text);
  return named;
}

class JsonFields {
 public:
  // `where` is the path for messages: "pre_tokenizer.pretokenizers[1]".
  JsonFields(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    if (!json_.is_object()) reject("", json_, "an object");
  }

  const std::string& where() const { return where_; }
  std::string path(std::string_view key) const { return key.empty() ? where_ : where_ + "." + std::string(key); }

  // nullptr when absent or null.
  const Json* find(std::string_view key) const {
    const auto it = json_.find(key);
    return it == json_.end() || it->is_null() ? nullptr : &*it;
  }
  const Json& require(std::string_view key) const {
    if (const Json* j = find(key)) return *j;
    throw Error("E220", path(key) + " is missing");
  }
  std::string string(std::string_view key) const {
    const Json& j = require(key);
    if (!j.is_string()) reject(key, j, "a string");
    return j.get<std::string>();
  }
  std::string string(std::string_view key, std::string otherwise) const { return find(key) ? string(key) : std::move(otherwise); }
  bool boolean(std::string_view key, bool otherwise) const {
    const Json* j = find(key);
    if (!j) return otherwise;
    if (!j->is_boolean()) reject(key, *j, "true or false");
    return j->get<bool>();
  }
  std::int64_t integer(std::string_view key, std::int64_t otherwise) const {
    const Json* j = find(key);
    if (!j) return otherwise;
    if (!j->is_number_integer()) reject(key, *j, "an integer");
    return j->get<std::int64_t>();
  }
  const Json& array(std::string_view key) const {
    const Json& j = require(key);
    if (!j.is_array()) reject(key, j, "an array");
    return j;
  }
  [[noreturn]] void reject(std::string_view key, const Json& found, const std::string& expected) const {
    std::string text = found.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
    if (text.size() > 60) text = text.substr(0, 57) + "...";
    throw Error("E220", path(key) + " is " + text + ", expected " + expected);
  }

 private:
  const Json& json_;
  std::string where_;
};

}  // namespace qengine
