#include "core/model/json_text.hpp"

#include <unordered_set>
#include <vector>

#include "core/base/error.hpp"
#include "core/model/file_bytes.hpp"
#include "core/model/text.hpp"

namespace qengine {
namespace {

// Builds a Json value from parser events.
class Builder {
 public:
  Builder(std::string_view text, const std::string& name, const JsonLimits& limits) : text_(text), name_(name), limits_(limits) {}

  bool null() { return add(nullptr); }
  bool boolean(bool v) { return add(v); }
  bool number_integer(Json::number_integer_t v) { return add(v); }
  bool number_unsigned(Json::number_unsigned_t v) { return add(v); }
  bool number_float(Json::number_float_t v, const std::string&) { return add(v); }
  bool string(std::string& v) { return add(std::move(v)); }
  bool binary(Json::binary_t&) { return false; }
  bool start_object(std::size_t) { return open(Json::object()); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(std::string& k) {
    if (!levels_.back().keys.insert(k).second) fail("has the key \"" + printable(k) + "\" twice in one object");
    key_ = std::move(k);
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& e) {
    fail("is not valid JSON (" + json_complaint(e.what()) + ")");
  }

  Json take() { return std::move(root_); }

 private:
  struct Level {
    Json* value;
    std::unordered_set<std::string> keys;
  };

  [[noreturn]] void fail(const std::string& what) {
    throw Error("E208", name_ + " " + what).hint(mistaken_hint(text_, "the file is damaged or was edited by hand; fetch it again"));
  }

  Json* place(Json v) {
    if (++count_ > limits_.values) fail("holds more than " + std::to_string(limits_.values) + " values");
    if (levels_.empty()) {
      root_ = std::move(v);
      return &root_;
    }
    Json& parent = *levels_.back().value;
    if (parent.is_array()) return &parent.get_ref<Json::array_t&>().emplace_back(std::move(v));
    // Straight into the underlying list: the keys are known to differ, and looking each up first
    // would take quadratic time.
    auto& items = parent.get_ref<Json::object_t&>();
    items.Container::emplace_back(std::move(key_), std::move(v));
    return &items.back().second;
  }
  bool add(Json v) { return place(std::move(v)) != nullptr; }
  bool open(Json v) {
    if (static_cast<int>(levels_.size()) >= limits_.depth)
      fail("is nested more than " + std::to_string(limits_.depth) + " levels deep");
    Json* at = place(std::move(v));
    levels_.push_back({at, {}});
    return true;
  }
  bool close() {
    levels_.pop_back();
    return true;
  }

  std::string_view text_;
  const std::string& name_;
  const JsonLimits& limits_;
  Json root_;
  std::vector<Level> levels_;
  std::string key_;
  std::size_t count_ = 0;
};

}  // namespace

std::string json_complaint(std::string_view what) {
  if (const auto end = what.find("] "); what.starts_with('[') && end != what.npos) what.remove_prefix(end + 2);
  if (what.starts_with("parse error ")) what.remove_prefix(12);
  return printable(what, 200);
}

Json parse_json(std::string_view text, const std::string& name, const JsonLimits& limits) {
  if (text.size() > limits.bytes)
    throw Error("E208", name + " has " + std::to_string(text.size()) + " bytes; at most " +
                            std::to_string(limits.bytes) + " are read")
        .hint("is it the right file?");
  // The library takes a NUL for the end of its input, whatever follows.
  if (const auto nul = text.find('\0'); nul != text.npos)
    throw Error("E208", name + " is not valid JSON (NUL byte at offset " + std::to_string(nul) + ")")
        .hint("the file is damaged; fetch it again");
  Builder builder(text, name, limits);
  Json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

Json read_json_object(const std::filesystem::path& file, const JsonLimits& limits) {
  const FileBytes bytes = FileBytes::map(file);
  const std::string_view text(reinterpret_cast<const char*>(bytes.bytes().data()), bytes.bytes().size());
  Json out = parse_json(text, bytes.name(), limits);
  if (!out.is_object())
    throw Error("E208", bytes.name() + " is not a JSON object but " + std::string(out.type_name()))
        .in(printable(file.string(), 400))
        .hint("the file is damaged or belongs to something else; fetch it again");
  return out;
}

}  // namespace qengine
