#include "core/model/safetensors.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <unordered_set>

#include "core/base/checked.hpp"
#include "core/base/error.hpp"
#include "core/model/dtype.hpp"
#include "core/model/json_text.hpp"
#include "core/model/text.hpp"

namespace qengine {
namespace {

constexpr std::uint64_t kHeaderLimit = 100'000'000;  // the format's own limit
constexpr int kDepthLimit = 4;
constexpr std::size_t kNameLimit = 1024;
// The shortest possible entry takes this many bytes of header, so more tensors than that are a lie.
constexpr std::uint64_t kBytesPerEntry = 40;
constexpr std::uint64_t kMaxTensors = 400'000;  // keeps what we build from a header near its own size

std::string text_of(std::uint64_t n) { return std::to_string(n); }

[[noreturn]] void fail(const FileBytes& file, const std::string& what, const std::string& hint) {
  throw Error("E207", what).in(printable(file.name())).hint(hint);
}

const char kDamaged[] = "the file is damaged or the download is incomplete: fetch it again";

// Reads the header's JSON as a stream of events. Level 1 is the header, 2 an entry, 3 a list in it.
class HeaderReader {
 public:
  HeaderReader(const FileBytes& file, std::uint64_t header_bytes)
      : file_(file), max_tensors_(std::min(header_bytes / kBytesPerEntry + 1, kMaxTensors)) {}

  SafetensorsFile take() { return std::move(out_); }

  bool null() { return scalar("null"); }
  bool boolean(bool) { return scalar("a boolean"); }
  bool number_integer(Json::number_integer_t v) { return number(std::to_string(v), false, 0); }
  bool number_unsigned(Json::number_unsigned_t v) { return number(std::to_string(v), true, v); }
  bool number_float(Json::number_float_t, const std::string& text) { return number(text, false, 0); }
  bool binary(Json::binary_t&) { return false; }

  bool string(std::string& v) {
    if (in_metadata_) {
      if (key_ == "format") out_.format = v.substr(0, 64);
      return true;
    }
    if (depth_ == 2 && field_ == Field::kDtype) {
      const SafetensorsType* type = safetensors_type(v);
      if (type == nullptr)
        bad_entry("has the unknown dtype \"" + printable(v, 40) + "\"",
                  "a newer writer made it, or the file is damaged");
      bits_ = type->bits;
      tensor_.dtype = type->dtype;
      return true;
    }
    return scalar("a string");
  }

  bool start_object(std::size_t) {
    if (++depth_ > kDepthLimit) too_deep();
    if (depth_ == 1) return true;
    if (depth_ == 2) {
      if (in_metadata_) return true;
      if (out_.tensors.size() >= max_tensors_) fail(file_, "the header lists more than " + text_of(max_tensors_) + " tensors", kDamaged);
      return true;
    }
    return scalar("an object");
  }

  bool start_array(std::size_t) {
    ++depth_;
    if (depth_ > kDepthLimit) too_deep();
    if (depth_ == 1) fail(file_, "the safetensors header is not a JSON object but an array", kDamaged);
    if (depth_ == 3 && (field_ == Field::kShape || field_ == Field::kOffsets)) return true;
    return scalar("an array");
  }

  bool key(std::string& k) {
    if (depth_ == 1) {
      begin_entry(k);
    } else if (in_metadata_) {
      if (!keys_.insert(k).second) fail(file_, "__metadata__ has the key \"" + printable(k) + "\" twice", kDamaged);
      key_ = k;
    } else if (depth_ == 2) {
      field_ = k == "dtype" ? Field::kDtype : k == "shape" ? Field::kShape
             : k == "data_offsets" ? Field::kOffsets : Field::kOther;
      if (!keys_.insert(k).second) bad_entry("has the key \"" + printable(k) + "\" twice", kDamaged);
      key_ = k;
    }
    return true;
  }

  bool end_object() {
    if (depth_-- == 2) {
      if (!in_metadata_) end_entry();
      in_metadata_ = false;
    }
    return true;
  }
  bool end_array() {
    --depth_;
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& e) {
    const std::string why = json_complaint(e.what());
    const bool utf8 = why.find("UTF-8") != why.npos;
    fail(file_, std::string("the safetensors header is not valid ") + (utf8 ? "UTF-8 (" : "JSON (") + why + ")",
         kDamaged);
  }

 private:
  enum class Field { kNone, kDtype, kShape, kOffsets, kOther };

  [[noreturn]] void bad_entry(const std::string& what, const std::string& hint) {
    fail(file_, printable(tensor_.name) + " " + what, hint);
  }
  [[noreturn]] void too_deep() {
    fail(file_, "the safetensors header is nested more than " + std::to_string(kDepthLimit) + " levels deep", kDamaged);
  }

  void begin_entry(const std::string& name) {
    keys_.clear();
    field_ = Field::kNone;
    in_metadata_ = name == "__metadata__";
    if (!names_.insert(name).second)
      fail(file_, printable(name) + " occurs twice in the header (duplicate)", "the file is damaged or was tampered with");
    if (in_metadata_) return;
    tensor_ = {};
    tensor_.name = name;
    bits_ = 0;
    n_offsets_ = 0;
    if (name.empty()) fail(file_, "a tensor has an empty name", kDamaged);
    if (name.size() > kNameLimit)
      bad_entry("has a name of " + text_of(name.size()) + " bytes; at most " + text_of(kNameLimit) + " are read", kDamaged);
    for (const char c : name)
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
        bad_entry("has a control character in its name", kDamaged);
  }

  bool number(const std::string& text, bool valid, std::uint64_t v) {
    if (depth_ == 3 && !in_metadata_ && field_ == Field::kShape) {
      if (!valid || v > INT64_MAX)
        bad_entry("has the size " + printable(text, 40) + " in its shape; expected integers from 0", kDamaged);
      tensor_.shape.push_back(static_cast<std::int64_t>(v));
      return true;
    }
    if (depth_ == 3 && !in_metadata_ && field_ == Field::kOffsets) {
      if (!valid || n_offsets_ >= 2)
        bad_entry("has unusable data_offsets; expected two integers from 0", kDamaged);
      offsets_[n_offsets_++] = v;
      return true;
    }
    return scalar("a number");
  }

  // A value at a place where nothing of that kind belongs. Unknown fields of an entry may hold anything.
  bool scalar(const char* kind) {
    if (depth_ == 0) fail(file_, std::string("the safetensors header is not a JSON object but ") + kind, kDamaged);
    if (in_metadata_)
      fail(file_, "__metadata__." + printable(key_, 40) + " is " + kind + "; expected a string", kDamaged);
    if (depth_ == 1) bad_entry(std::string("is ") + kind + "; expected an object with dtype, shape, data_offsets", kDamaged);
    if (field_ == Field::kOther) return true;
    bad_entry("has " + std::string(kind) + " in \"" + printable(key_, 40) + "\"", kDamaged);
  }

  void end_entry() {
    if (tensor_.dtype == 0 || !keys_.contains("shape") || n_offsets_ != 2)
      bad_entry("lacks dtype, shape or data_offsets", kDamaged);
    std::uint64_t count = 1;
    for (const std::int64_t d : tensor_.shape) {
      const auto product = checked_mul(count, static_cast<std::uint64_t>(d));
      if (!product) overflow();
      count = *product;
    }
    const auto bits = checked_mul(count, static_cast<std::uint64_t>(bits_));
    if (!bits) overflow();
    if (*bits % 8 != 0)
      bad_entry("has " + text_of(count) + " elements of " + std::to_string(bits_) + " bits, which is no whole number of bytes",
                kDamaged);
    if (offsets_[1] < offsets_[0])
      bad_entry("has data_offsets [" + text_of(offsets_[0]) + ", " + text_of(offsets_[1]) + "]: the end lies before the begin",
                kDamaged);
    if (*bits / 8 != offsets_[1] - offsets_[0])
      bad_entry("of dtype " + dtype_name(tensor_.dtype) + " and shape " + shape_text(tensor_.shape) + " takes " +
                    text_of(*bits / 8) + " bytes, its data_offsets span " + text_of(offsets_[1] - offsets_[0]),
                kDamaged);
    tensor_.file_name = tensor_.name;
    tensor_.offset = offsets_[0];
    tensor_.bytes = *bits / 8;
    out_.tensors.push_back(std::move(tensor_));
  }
  [[noreturn]] void overflow() {
    bad_entry("has shape " + shape_text(tensor_.shape) + ", whose size overflows 64 bits (size overflow)", kDamaged);
  }

  const FileBytes& file_;
  const std::uint64_t max_tensors_;
  SafetensorsFile out_;
  int depth_ = 0;
  bool in_metadata_ = false;
  Field field_ = Field::kNone;
  std::string key_;
  std::unordered_set<std::string> names_, keys_;
  Tensor tensor_;  // the entry being read
  int bits_ = 0, n_offsets_ = 0;
  std::uint64_t offsets_[2] = {};
};

}  // namespace

SafetensorsFile parse_safetensors(const FileBytes& file) {
  const auto bytes = file.bytes();
  const auto hint = [&] { return mistaken_hint({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, kDamaged); };
  if (bytes.size() < 8)
    fail(file, "the file has " + text_of(bytes.size()) + " bytes, too small for a safetensors header", kDamaged);
  std::uint64_t header = 0;
  for (int i = 7; i >= 0; --i) header = header << 8 | std::to_integer<std::uint64_t>(bytes[static_cast<std::size_t>(i)]);
  if (header > kHeaderLimit)
    fail(file, "the safetensors header length " + text_of(header) + " is too large: the limit is " + text_of(kHeaderLimit) +
                   ", the file has " + text_of(bytes.size()) + " bytes", hint());
  if (header > bytes.size() - 8)
    fail(file, "the safetensors header length " + text_of(header) + " goes beyond the file, which has " +
                   text_of(bytes.size()) + " bytes", hint());
  if (header < 2) fail(file, "the safetensors header is too small (" + text_of(header) + " bytes)", hint());

  std::string_view text(reinterpret_cast<const char*>(bytes.data()) + 8, header);
  if (const auto nul = text.find('\0'); nul != text.npos)
    fail(file, "the safetensors header is not valid JSON (NUL byte at offset " + text_of(nul) + ")", kDamaged);
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == text.npos || text[first] != '{')
    fail(file, "the safetensors header is not a JSON object", hint());
  text = text.substr(0, text.find_last_not_of(' ') + 1);  // padding; nothing else may follow the object
  if (text.back() != '}')
    fail(file, "the safetensors header is not valid JSON (it ends with \"" + printable(text.substr(text.size() - 1)) + "\")", kDamaged);

  HeaderReader reader(file, header);
  Json::sax_parse(text.begin(), text.end(), &reader);
  SafetensorsFile out = reader.take();

  // An empty tensor goes before a longer one that begins at the same place.
  std::sort(out.tensors.begin(), out.tensors.end(), [](const Tensor& a, const Tensor& b) {
    return a.offset != b.offset ? a.offset < b.offset : a.bytes < b.bytes;
  });
  const std::uint64_t start = 8 + header, room = bytes.size() - start;
  std::uint64_t end = 0;
  for (Tensor& t : out.tensors) {
    const std::string place = printable(t.name) + " begins at byte " + text_of(t.offset) + " of the data, ";
    if (t.offset < end) fail(file, place + "inside the tensor before it, which ends at " + text_of(end) + " (overlap)", kDamaged);
    if (t.offset > end) fail(file, place + "the tensor before it ends at " + text_of(end) + " (hole)", kDamaged);
    if (t.bytes > room - end) {
      const auto need = checked_add(out.tensors.back().offset + out.tensors.back().bytes, start);
      fail(file, printable(t.name) + " goes beyond the end of the file",
           need ? "the download may be incomplete: " + printable(file.name()) + " has " + text_of(bytes.size()) +
                      " bytes, its header needs " + text_of(*need)
                : kDamaged);
    }
    end += t.bytes;
    t.offset += start;
  }
  if (end != room)
    fail(file, "there are " + text_of(room - end) + " bytes after the last tensor",
         "the file is damaged, or something was appended to it");
  return out;
}

}  // namespace qengine
