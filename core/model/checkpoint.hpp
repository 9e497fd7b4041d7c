// Checkpoint: the files of one model, opened and checked, their tensors by name.
//
// A safetensors folder (single or sharded) and a GGUF file (single or split) look the same from
// here: tensors carry Hugging Face names, `config()` is config.json or its equivalent made from GGUF
// metadata. Nothing here knows what a quantization format means.
//
// GGUF. A matrix (two or more dimensions) keeps its raw blocks: dtype QE_GGML + type id also for F32,
// F16 and BF16, shape [N, K] in elements, rows in the file's order: llama-arch attn_q / attn_k rows
// are interleaved there, and only a plugin that knows this may read them. A vector (norm, bias) of
// F32, F16 or BF16 has the plain dtype: core reads those itself. rope_freqs.weight is no tensor here
// but part of config().
//
// Left out of tensors(): rotary tables (*.rotary_emb.inv_freq and the like) and the vision half of a
// wrapped model; neither is read by anything.
//
// Every check on the containers has passed once open() returns; no byte of a matrix has been read.
// Files are untrusted: sizes are bounded by the file, never by what it claims.
//
// Thread-safe after open (all const).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/model/quant_dialect.hpp"

namespace qengine {

using Json = nlohmann::ordered_json;

// dtypes of safetensors that the plugin ABI has no number for: checked and listed, wanted by nobody.
enum : std::int32_t {
  kDtypeBool = 64, kDtypeU16, kDtypeU32, kDtypeU64, kDtypeF64, kDtypeC64, kDtypeE4M3Fnuz, kDtypeE5M2Fnuz,
  kDtypeE2M3, kDtypeE3M2,
};

// One tensor as it lies in a file.
struct Tensor {
  std::string name;       // Hugging Face name, prefixes such as "language_model." stripped
  std::string file_name;  // as spelled in the file (GGUF: "blk.0.attn_q.weight")
  std::int32_t dtype = 0;  // QE_F32 ... or QE_GGML + type id
  std::vector<std::int64_t> shape;
  int file = 0;              // index into files()
  std::uint64_t offset = 0;  // of its first byte in that file
  std::uint64_t bytes = 0;
};

// "BF16", "F8_E4M3", "Q4_K", ...; "dtype 99" when unknown.
std::string dtype_name(std::int32_t dtype);

class Checkpoint {
 public:
  enum class Kind { kSafetensors, kGguf, kConfigOnly };

  // `model`: a folder, a .gguf file, or (with config_only) a folder or config.json whose weights are
  // not looked at. `dialects` (PluginHost::dialects) name quantization configs that do not name themselves;
  // without any such a config is an error. Throws Error E2xx naming file, tensor or field.
  static std::shared_ptr<const Checkpoint> open(const std::filesystem::path& model, bool config_only = false,
                                                std::span<const QuantDialect> dialects = {});
  // For shapes from a table and for tests: no files at all.
  static std::shared_ptr<const Checkpoint> from_config(Json config, Json quant_config = nullptr, std::span<const QuantDialect> dialects = {});

  virtual ~Checkpoint() = default;

  virtual Kind kind() const = 0;
  virtual const std::filesystem::path& path() const = 0;    // as given
  virtual const std::filesystem::path& folder() const = 0;  // where tokenizer.json etc. would lie

  virtual std::span<const Tensor> tensors() const = 0;  // by file, then by offset
  virtual const Tensor* find(std::string_view name) const = 0;  // nullptr when absent

  // The name that `name` has, or would have, in the file: "blk.0.attn_q.weight" for a GGUF file. For messages.
  virtual std::string name_in_file(std::string_view name) const { return std::string(name); }
  // True where rows of attn_q and attn_k, weights and biases alike, lie in interleaved rotary order
  // (GGUF of architecture llama; formats.md 9.5): row h*hd + 2i + s of the file is row h*hd + s*hd/2 + i.
  virtual bool rotary_rows_interleaved() const { return false; }

  // The tensor's bytes, mapped read-only; valid as long as the checkpoint. No alignment is promised.
  virtual std::span<const std::byte> data(const Tensor&) const = 0;
  // Tells the system that these pages are not needed again, so that they do not count as ours.
  virtual void release(const Tensor&) const = 0;
  // The same for every page, metadata too; what is read again comes back.
  virtual void release_all() const {}

  virtual const Json& config() const = 0;        // an object
  // null when the checkpoint is not quantized. `quant_method` is lower-cased, and filled in by the
  // dialects when absent; "gguf" for GGUF files.
  virtual const Json& quant_config() const = 0;
  virtual const std::string& quant_config_source() const = 0;  // "config.json quantization_config"
  // null unless kGguf: flat object, keys as in the file. Arrays of more than 1024 elements (token
  // lists) are left out: the three calls below give any array straight from the file.
  virtual const Json& gguf_metadata() const = 0;
  // Elements of an array in the metadata; empty when the key is absent. Views live as long as the
  // checkpoint. Throws Error E207 naming the key when it holds anything else: gguf_floats takes f32
  // and f64 elements, gguf_ints every integer type and bool.
  virtual std::vector<std::string_view> gguf_strings(std::string_view key) const = 0;
  virtual std::vector<float> gguf_floats(std::string_view key) const = 0;
  virtual std::vector<std::int64_t> gguf_ints(std::string_view key) const = 0;
  virtual const Json& generation_config() const = 0;  // null when absent

  struct File {
    std::filesystem::path path;
    std::uint64_t bytes;
  };
  virtual std::span<const File> files() const = 0;
  virtual std::span<const std::string> warnings() const = 0;  // to be logged once by whoever loads
};

}  // namespace qengine
