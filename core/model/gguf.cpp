#include "core/model/gguf.hpp"

#include <qe/plugin.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <unordered_set>

#include "core/base/checked.hpp"
#include "core/base/error.hpp"
#include "core/model/dtype.hpp"
#include "core/model/text.hpp"

namespace qengine {
namespace {

constexpr std::uint64_t kKeyLimit = 65535;
constexpr std::uint64_t kStringLimit = std::uint64_t{1} << 30;
constexpr std::uint64_t kArrayLimit = std::uint64_t{1} << 30;
constexpr std::uint64_t kNameLimit = 64;  // with the terminator that other readers add
constexpr std::int64_t kMaxPairs = 400'000, kMaxTensors = 400'000;  // far above any model
constexpr std::uint64_t kDefaultAlignment = 32;
constexpr std::uint64_t kMinPair = 8 + 1 + 4 + 1, kMinInfo = 8 + 1 + 4 + 8 + 4 + 8;  // bytes in the file
constexpr char kDamaged[] = "the file is damaged or the download is incomplete: fetch it again";

std::string text_of(std::uint64_t n) { return std::to_string(n); }

// Bytes of a fixed-size type; 0 for strings and arrays.
std::uint64_t width(GgufType t) {
  switch (t) {
    case GgufType::kU8: case GgufType::kI8: case GgufType::kBool: return 1;
    case GgufType::kU16: case GgufType::kI16: return 2;
    case GgufType::kU32: case GgufType::kI32: case GgufType::kF32: return 4;
    case GgufType::kU64: case GgufType::kI64: case GgufType::kF64: return 8;
    case GgufType::kString: case GgufType::kArray: return 0;
  }
  return 0;
}

bool known(std::int32_t t) { return t >= 0 && t <= static_cast<std::int32_t>(GgufType::kF64); }

template <class T>
T load(const std::byte* p) {
  static_assert(std::endian::native == std::endian::little, "GGUF is read in place");
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// A place in the file that moves forward and never past the end.
class Cursor {
 public:
  explicit Cursor(const FileBytes& file) : file_(file), bytes_(file.bytes()) {}

  [[noreturn]] void fail(const std::string& what, const std::string& hint = kDamaged) const {
    throw Error("E207", what).in(printable(file_.name())).hint(hint);
  }

  std::uint64_t at() const { return at_; }
  std::uint64_t left() const { return bytes_.size() - at_; }

  std::span<const std::byte> take(std::uint64_t n, const std::string& what) {
    if (n > left())
      fail(what + " takes " + text_of(n) + " bytes, the file ends after " + text_of(left()));
    const auto out = bytes_.subspan(at_, n);
    at_ += n;
    return out;
  }
  template <class T>
  T number(const std::string& what) {
    return load<T>(take(sizeof(T), what).data());
  }
  std::string_view string(std::uint64_t limit, const std::string& what) {
    const auto n = number<std::uint64_t>(what);
    if (n > limit) fail(what + " is " + text_of(n) + " bytes long; at most " + text_of(limit) + " are read");
    const auto b = take(n, what);
    return {reinterpret_cast<const char*>(b.data()), b.size()};
  }

 private:
  const FileBytes& file_;
  std::span<const std::byte> bytes_;
  std::uint64_t at_ = 0;
};

void read_value(Cursor& in, GgufPair& pair, const std::string& shown) {
  const std::uint64_t begin = in.at();
  if (pair.type == GgufType::kString) {
    in.string(kStringLimit, shown);
  } else if (pair.type != GgufType::kArray) {
    in.take(width(pair.type), shown);
  } else {
    const auto element = in.number<std::int32_t>(shown);
    if (!known(element)) in.fail(shown + " is an array of the unknown type " + std::to_string(element));
    pair.element = static_cast<GgufType>(element);
    if (pair.element == GgufType::kArray) in.fail(shown + " is an array of arrays, which GGUF does not have");
    pair.count = in.number<std::uint64_t>(shown);
    if (pair.count > kArrayLimit)
      in.fail(shown + " claims " + text_of(pair.count) + " elements; at most " + text_of(kArrayLimit) + " are read");
    if (pair.element == GgufType::kString) {
      if (pair.count > in.left() / 8)
        in.fail(shown + " claims " + text_of(pair.count) + " strings, the file ends after " + text_of(in.left()) + " bytes");
      const std::uint64_t first = in.at();
      for (std::uint64_t i = 0; i < pair.count; ++i) in.string(kStringLimit, shown);
      pair.data = pair.data.subspan(first, in.at() - first);
    } else {
      pair.data = in.take(pair.count * width(pair.element), shown);
    }
    return;
  }
  pair.data = pair.data.subspan(begin, in.at() - begin);
}

// Names of keys and tensors are printed, compared and passed on as text.
bool fit_to_print(std::string_view name) {
  for (const char c : name)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return false;
  return utf8_prefix(name) == name.size();
}

std::optional<std::int64_t> integer_at(GgufType type, const std::byte* p) {
  switch (type) {
    case GgufType::kU8: return load<std::uint8_t>(p);
    case GgufType::kBool: return load<std::uint8_t>(p) != 0;
    case GgufType::kI8: return load<std::int8_t>(p);
    case GgufType::kU16: return load<std::uint16_t>(p);
    case GgufType::kI16: return load<std::int16_t>(p);
    case GgufType::kU32: return load<std::uint32_t>(p);
    case GgufType::kI32: return load<std::int32_t>(p);
    case GgufType::kI64: return load<std::int64_t>(p);
    case GgufType::kU64: {
      const auto v = load<std::uint64_t>(p);
      if (v > INT64_MAX) return std::nullopt;
      return static_cast<std::int64_t>(v);
    }
    default: return std::nullopt;
  }
}

Json scalar_json(GgufType type, const std::byte* p) {
  switch (type) {
    case GgufType::kF32: return static_cast<double>(load<float>(p));
    case GgufType::kF64: return load<double>(p);
    case GgufType::kBool: return load<std::uint8_t>(p) != 0;
    case GgufType::kU64: return load<std::uint64_t>(p);
    default: return *integer_at(type, p);
  }
}

[[noreturn]] void wrong_kind(const GgufPair& pair, const std::string& file, const char* expected) {
  throw Error("E207", printable(pair.key) + " is " +
                          (pair.type == GgufType::kArray ? std::string("an array of ") + gguf_type_name(pair.element)
                                                         : std::string("one ") + gguf_type_name(pair.type)) +
                          ", expected an array of " + expected)
      .in(printable(file))
      .hint("the file was not made by the usual converter, or is damaged");
}

void read_tensors(Cursor& in, GgufFile& out, std::uint64_t count, std::uint64_t alignment) {
  std::unordered_set<std::string_view> names;
  std::vector<std::uint64_t> offsets;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::string which = "tensor " + text_of(i) + " of " + text_of(count);
    const std::string_view name = in.string(kKeyLimit, "the name of " + which);
    const std::string shown = printable(name);
    if (name.empty()) in.fail(which + " has an empty name");
    if (name.size() >= kNameLimit)
      in.fail("tensor name " + shown + " has " + text_of(name.size()) + " bytes, expected fewer than " + text_of(kNameLimit));
    if (!fit_to_print(name)) in.fail(shown + " has control characters in its name, or is not UTF-8");
    if (!names.insert(name).second) in.fail(shown + " occurs twice (duplicate tensor name)");
    Tensor t;
    t.file_name = name;
    const auto n_dims = in.number<std::uint32_t>(shown);
    if (n_dims < 1 || n_dims > 4) in.fail(shown + " has " + text_of(n_dims) + " dimensions, expected 1 to 4");
    std::int64_t elements = 1;
    t.shape.resize(n_dims);
    for (std::uint32_t d = 0; d < n_dims; ++d) {
      const auto n = in.number<std::int64_t>(shown);
      if (n < 1) in.fail(shown + " has the size " + std::to_string(n) + " in dimension " + text_of(d) + ", expected at least 1");
      const auto product = checked_mul(elements, n);
      if (!product) in.fail(shown + " has more than 2^63 elements (size overflow)");
      elements = *product;
      t.shape[n_dims - 1 - d] = n;
    }
    const auto type = in.number<std::int32_t>(shown);
    const GgmlType* info = ggml_type(type);
    if (info == nullptr)
      in.fail(shown + " has type " + std::to_string(type) + ", which is unknown or retired",
              "convert the model again with a current converter");
    t.dtype = QE_GGML + type;
    const std::int64_t row = t.shape.back();
    if (row % info->block != 0)
      in.fail(shown + " (" + std::string(info->name) + ") has rows of " + std::to_string(row) +
              " elements, expected a multiple of " + std::to_string(info->block));
    const auto bytes = checked_mul(static_cast<std::uint64_t>(elements / info->block), info->bytes);
    if (!bytes || *bytes > INT64_MAX) in.fail(shown + " has shape " + shape_text(t.shape) + " (size overflow)");
    t.bytes = *bytes;
    t.offset = in.number<std::uint64_t>(shown);
    out.tensors.push_back(std::move(t));
  }

  const std::uint64_t file_bytes = in.at() + in.left();
  const std::uint64_t padding = (alignment - in.at() % alignment) % alignment;
  if (padding > in.left() && count > 0) in.fail("the file ends before its tensor data");
  const std::uint64_t start = in.at() + padding;  // at most a few GiB: alignment is 32 bits
  const std::uint64_t room = file_bytes > start ? file_bytes - start : 0;
  std::uint64_t expected = 0;  // running sum of padded sizes; never beyond `room` + alignment
  std::string before = "nothing";
  for (Tensor& t : out.tensors) {
    const std::string shown = printable(t.file_name);
    if (t.offset % alignment != 0)
      in.fail(shown + " has offset " + text_of(t.offset) + ", which is no multiple of the alignment " + text_of(alignment));
    if (t.offset > room || t.bytes > room - t.offset)
      in.fail(shown + " at offset " + text_of(t.offset) + " with " + text_of(t.bytes) +
                  " bytes goes beyond the end of the file (" + text_of(room) + " bytes of tensor data)",
              "the download may be incomplete: fetch the file again");
    if (t.offset != expected)
      in.fail(shown + " has offset " + text_of(t.offset) + ", expected " + text_of(expected) +
              " after " + before);
    before = shown + " " + shape_text(t.shape);
    expected = (t.offset + t.bytes + alignment - 1) / alignment * alignment;
    t.offset += start;
  }
}

}  // namespace

const char* gguf_type_name(GgufType type) {
  static constexpr const char* kNames[] = {"u8", "i8", "u16", "i16", "u32", "i32", "f32",
                                           "bool", "string", "array", "u64", "i64", "f64"};
  return kNames[static_cast<int>(type)];
}

const GgufPair* GgufFile::find(std::string_view key) const {
  const auto it = index.find(key);
  return it == index.end() ? nullptr : &pairs[it->second];
}

std::optional<std::int64_t> GgufFile::integer(std::string_view key) const {
  const GgufPair* pair = find(key);
  if (pair == nullptr || pair->type == GgufType::kArray || pair->type == GgufType::kString) return std::nullopt;
  return integer_at(pair->type, pair->data.data());
}

std::optional<std::string_view> GgufFile::string(std::string_view key) const {
  const GgufPair* pair = find(key);
  if (pair == nullptr || pair->type != GgufType::kString) return std::nullopt;
  return std::string_view(reinterpret_cast<const char*>(pair->data.data()) + 8, pair->data.size() - 8);
}

GgufFile parse_gguf(const FileBytes& file) {
  Cursor in(file);
  if (in.left() < 24)
    in.fail("the file has " + text_of(in.left()) + " bytes, too short for a GGUF header");
  if (const auto magic = in.take(4, "the magic"); std::memcmp(magic.data(), "GGUF", 4) != 0)
    in.fail("not a GGUF file: it begins with \"" +
                printable({reinterpret_cast<const char*>(magic.data()), 4}) + "\" instead of \"GGUF\"",
            mistaken_hint({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()},
                          "give a .gguf file or a folder with config.json and .safetensors files"));
  const auto version = in.number<std::uint32_t>("the version");
  if ((version & 0xffff) == 0)
    in.fail("the GGUF file is big-endian; only little-endian files are read", "convert the model for a little-endian machine");
  if (version != 2 && version != 3)
    in.fail("GGUF version " + text_of(version) + "; versions 2 and 3 are read", "convert the model again with a current converter");
  const auto n_tensors = in.number<std::int64_t>("the tensor count");
  const auto n_pairs = in.number<std::int64_t>("the metadata count");
  if (n_pairs < 0 || static_cast<std::uint64_t>(n_pairs) > in.left() / kMinPair)
    in.fail("the header claims " + std::to_string(n_pairs) + " metadata pairs; the file has room for " + text_of(in.left() / kMinPair));
  if (n_tensors < 0 || static_cast<std::uint64_t>(n_tensors) > in.left() / kMinInfo)
    in.fail("the header claims " + std::to_string(n_tensors) + " tensors; the file has room for " + text_of(in.left() / kMinInfo));

  if (n_pairs > kMaxPairs || n_tensors > kMaxTensors)
    in.fail("the header has " + std::to_string(n_pairs) + " metadata pairs and " + std::to_string(n_tensors) + " tensors; at most " +
            std::to_string(kMaxPairs) + " and " + std::to_string(kMaxTensors) + " are read");

  GgufFile out;
  for (std::int64_t i = 0; i < n_pairs; ++i) {
    const std::string which = "metadata pair " + std::to_string(i) + " of " + std::to_string(n_pairs);
    GgufPair pair;
    pair.key = in.string(kKeyLimit, "the key of " + which);
    if (pair.key.empty()) in.fail("the key of " + which + " is empty");
    const std::string shown = printable(pair.key);
    if (!fit_to_print(pair.key)) in.fail("the key " + shown + " has control characters, or is not UTF-8");
    if (out.index.contains(pair.key)) in.fail(shown + " occurs twice (duplicate key)");
    const auto type = in.number<std::int32_t>(shown);
    if (!known(type)) in.fail(shown + " has the unknown value type " + std::to_string(type));
    pair.type = static_cast<GgufType>(type);
    pair.data = file.bytes();
    read_value(in, pair, shown);
    out.index.emplace(pair.key, out.pairs.size());
    out.pairs.push_back(pair);
  }

  std::uint64_t alignment = kDefaultAlignment;
  if (const GgufPair* pair = out.find("general.alignment")) {
    const auto v = out.integer("general.alignment");
    if (!v || pair->type == GgufType::kBool || *v < 1 || *v > UINT32_MAX || !std::has_single_bit(static_cast<std::uint64_t>(*v)))
      in.fail("general.alignment is " + (v ? std::to_string(*v) : std::string("no integer")) + ", expected a power of two");
    alignment = static_cast<std::uint64_t>(*v);
  }
  read_tensors(in, out, static_cast<std::uint64_t>(n_tensors), alignment);
  return out;
}

std::vector<std::string_view> gguf_string_array(const GgufPair& pair, const std::string& file) {
  if (pair.type != GgufType::kArray || pair.element != GgufType::kString) wrong_kind(pair, file, "strings");
  std::vector<std::string_view> out;
  out.reserve(pair.count);
  const std::byte* p = pair.data.data();
  for (std::uint64_t i = 0; i < pair.count; ++i) {
    const auto n = load<std::uint64_t>(p);
    out.emplace_back(reinterpret_cast<const char*>(p) + 8, n);
    p += 8 + n;
  }
  return out;
}

std::vector<float> gguf_float_array(const GgufPair& pair, const std::string& file) {
  if (pair.type != GgufType::kArray || (pair.element != GgufType::kF32 && pair.element != GgufType::kF64))
    wrong_kind(pair, file, "floats");
  std::vector<float> out(pair.count);
  for (std::uint64_t i = 0; i < pair.count; ++i) {
    const std::byte* p = pair.data.data() + i * width(pair.element);
    out[i] = pair.element == GgufType::kF32 ? load<float>(p) : static_cast<float>(load<double>(p));
  }
  return out;
}

std::vector<std::int64_t> gguf_int_array(const GgufPair& pair, const std::string& file) {
  if (pair.type != GgufType::kArray || pair.element == GgufType::kF32 || pair.element == GgufType::kF64 ||
      pair.element == GgufType::kString)
    wrong_kind(pair, file, "integers");
  std::vector<std::int64_t> out(pair.count);
  for (std::uint64_t i = 0; i < pair.count; ++i) {
    const auto v = integer_at(pair.element, pair.data.data() + i * width(pair.element));
    if (!v)
      throw Error("E207", printable(pair.key) + " holds an integer above 2^63").in(printable(file)).hint(kDamaged);
    out[i] = *v;
  }
  return out;
}

Json gguf_json(const GgufPair& pair) {
  const auto text = [](const std::byte* p) {
    return as_utf8({reinterpret_cast<const char*>(p) + 8, load<std::uint64_t>(p)});
  };
  if (pair.type == GgufType::kString) return text(pair.data.data());
  if (pair.type != GgufType::kArray) return scalar_json(pair.type, pair.data.data());
  Json out = Json::array();
  const std::byte* p = pair.data.data();
  for (std::uint64_t i = 0; i < pair.count; ++i) {
    if (pair.element == GgufType::kString) {
      out.push_back(text(p));
      p += 8 + load<std::uint64_t>(p);
    } else {
      out.push_back(scalar_json(pair.element, p));
      p += width(pair.element);
    }
  }
  return out;
}

}  // namespace qengine
