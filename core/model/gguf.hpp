// One GGUF file: header, metadata and tensor list, checked against the bytes that are there.
//
// Values are views into the file; nothing is copied but the names. Versions 2 and 3, little-endian.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/model/checkpoint.hpp"
#include "core/model/file_bytes.hpp"

namespace qengine {

enum class GgufType : std::int32_t {
  kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64,
};
const char* gguf_type_name(GgufType type);

// One metadata pair. `data` starts at the value (of an array: at its first element) and runs to the
// end of the value.
struct GgufPair {
  std::string_view key;
  GgufType type = GgufType::kU8;     // kArray for arrays
  GgufType element = GgufType::kU8;  // arrays: of what
  std::uint64_t count = 1;           // arrays: how many
  std::span<const std::byte> data;
};

struct GgufFile {
  std::vector<GgufPair> pairs;  // in file order
  std::unordered_map<std::string_view, std::size_t> index;
  // As spelled in the file; offset from the start of the file; dtype QE_GGML + id; shape reversed to
  // [N, K]. In file order, which is also by offset.
  std::vector<Tensor> tensors;

  const GgufPair* find(std::string_view key) const;
  std::optional<std::int64_t> integer(std::string_view key) const;  // nullopt: absent or no integer
  std::optional<std::string_view> string(std::string_view key) const;
};

// Throws Error E207 naming the file and the key or tensor.
GgufFile parse_gguf(const FileBytes& file);

// The value as JSON; arrays too. Bytes that are not UTF-8 become U+FFFD.
Json gguf_json(const GgufPair& pair);

// Elements of an array; Error E207 naming the key when it is of another kind.
std::vector<std::string_view> gguf_string_array(const GgufPair& pair, const std::string& file);
std::vector<float> gguf_float_array(const GgufPair& pair, const std::string& file);
std::vector<std::int64_t> gguf_int_array(const GgufPair& pair, const std::string& file);

// "blk.3.attn_q.weight" -> "model.layers.3.self_attn.q_proj.weight"; a name that is not known stays.
std::string hf_name(std::string_view gguf_name);
std::string gguf_name(std::string_view hf_name);  // and back

// config.json's equivalent. `tensors` carry Hugging Face names already. Values are copied as they are
// and judged by read_model_config; gguf_key() gives back the spelling for its error texts.
Json gguf_config(const GgufFile& file, std::span<const Tensor> tensors, std::vector<std::string>& warnings);
std::string gguf_key(std::string_view architecture, std::string_view config_key);  // "" when there is none

}  // namespace qengine
