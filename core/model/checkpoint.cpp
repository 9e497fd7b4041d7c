#include "core/model/checkpoint.hpp"

#include <qe/plugin.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "core/base/error.hpp"
#include "core/model/checkpoint_memory.hpp"
#include "core/model/dtype.hpp"
#include "core/model/file_bytes.hpp"
#include "core/model/gguf.hpp"
#include "core/model/json_text.hpp"
#include "core/model/quant_config.hpp"
#include "core/model/safetensors.hpp"
#include "core/model/text.hpp"

namespace qengine {
namespace fs = std::filesystem;
namespace {

constexpr std::uint64_t kJsonArrayLimit = 1024;  // longer metadata arrays stay in the file
constexpr std::uint64_t kJsonValueLimit = 500'000;  // and so does what comes after this many values
constexpr char kDownload[] = "the download may be incomplete: fetch the missing file";

std::string shown(const fs::path& path) { return printable(path.string(), 400); }

bool there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> out;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (out.size() >= 100'000) break;
    out.push_back(it->path().filename().string());
  }
  if (error) throw Error("E201", "cannot list " + shown(folder) + ": " + error.message());
  std::sort(out.begin(), out.end());
  return out;
}

bool is_pickle_name(std::string_view name) {
  for (const char* end : {".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})
    if (name.ends_with(end)) return true;
  return false;
}

[[noreturn]] void refuse_pickle(const std::string& what) {
  throw Error("E201", what)
      .from("pickle files can run code when read and are not opened")
      .hint("export the model as safetensors with its own tools");
}

// "model-00002-of-00005.safetensors" -> {"model", 2, 5}.
struct SplitName {
  std::string stem;
  int number = 0, count = 0;
};
std::optional<SplitName> split_name(std::string_view name, std::string_view extension) {
  // STEM-ddddd-of-dddddEXT
  const std::size_t tail = 1 + 5 + 4 + 5 + extension.size();
  if (name.size() <= tail || !name.ends_with(extension)) return std::nullopt;
  const std::string_view t = name.substr(name.size() - tail);
  if (t[0] != '-' || t.substr(6, 4) != "-of-") return std::nullopt;
  SplitName out{std::string(name.substr(0, name.size() - tail))};
  for (int i = 0; i < 5; ++i) {
    const char a = t[static_cast<std::size_t>(1 + i)], b = t[static_cast<std::size_t>(10 + i)];
    if (a < '0' || a > '9' || b < '0' || b > '9') return std::nullopt;
    out.number = out.number * 10 + (a - '0');
    out.count = out.count * 10 + (b - '0');
  }
  if (out.number < 1 || out.number > out.count) return std::nullopt;
  return out;
}
std::string join_split(const SplitName& s, int number, std::string_view extension) {
  const auto five = [](int n) {
    const std::string d = std::to_string(n);
    return std::string(d.size() < 5 ? 5 - d.size() : 0, '0') + d;
  };
  return s.stem + "-" + five(number) + "-of-" + five(s.count) + std::string(extension);
}

// A tensor's name in the text model: "model.layers...", "model.embed_tokens...", "model.norm..." and "lm_head...", whatever
// was around the model when it was saved (a multimodal wrapper, an adapter merged since, a trainer, a compiler), and also where it
// was saved from inside, without any prefix. Other names stay as they are; "" = a part that is not the text model's.
std::string text_model_name(const std::string& name) {
  for (const char* end : {".rotary_emb.inv_freq", ".rotary_emb.cos_cached", ".rotary_emb.sin_cached"})
    if (name.ends_with(end)) return {};
  std::string_view inner = name;
  for (bool again = true; again;) {
    again = false;
    for (const std::string_view around : {"model.", "language_model.", "base_model.", "module.", "_orig_mod."})
      if (inner.starts_with(around)) inner.remove_prefix(around.size()), again = true;
  }
  for (const char* part : {"vision_tower.", "vision_model.", "multi_modal_projector.", "visual.", "audio_tower.", "mlp1."})
    if (inner.starts_with(part)) return {};
  for (const char* part : {"layers.", "embed_tokens.", "norm."})
    if (inner.starts_with(part)) return "model." + std::string(inner);
  return inner.starts_with("lm_head.") ? std::string(inner) : name;
}

// The config of the text model inside a multimodal one goes by the name that most wrappers give it.
void name_text_config(Json& config) {
  for (const char* other : {"llm_config", "language_config"}) {
    const auto it = config.find(other);
    if (config.contains("text_config") || it == config.end() || !it->is_object()) continue;
    Json inner = std::move(*it);
    config.erase(other);
    config["text_config"] = std::move(inner);
  }
}

class CheckpointImpl final : public Checkpoint {
 public:
  Kind kind() const override { return kind_; }
  const fs::path& path() const override { return path_; }
  const fs::path& folder() const override { return folder_; }
  std::span<const Tensor> tensors() const override { return tensors_; }
  const Tensor* find(std::string_view name) const override {
    const auto it = by_name_.find(name);
    return it == by_name_.end() ? nullptr : &tensors_[it->second];
  }
  std::string name_in_file(std::string_view name) const override {
    if (const Tensor* t = find(name)) return t->file_name;
    return kind_ == Kind::kGguf ? gguf_name(name) : std::string(name);
  }
  bool rotary_rows_interleaved() const override {
    return kind_ == Kind::kGguf && gguf_.string("general.architecture") == "llama";
  }
  std::span<const std::byte> data(const Tensor& t) const override {
    return maps_[static_cast<std::size_t>(t.file)].bytes().subspan(t.offset, t.bytes);
  }
  void release_all() const override {
    for (const FileBytes& map : maps_) map.release(0, ~std::uint64_t{0});
  }
  void release(const Tensor& t) const override { maps_[static_cast<std::size_t>(t.file)].release(t.offset, t.bytes); }
  const Json& config() const override { return config_; }
  const Json& quant_config() const override { return quant_.config; }
  const std::string& quant_config_source() const override { return quant_.source; }
  const Json& gguf_metadata() const override { return gguf_metadata_; }
  std::vector<std::string_view> gguf_strings(std::string_view key) const override {
    const GgufPair* pair = gguf_.find(key);
    if (pair == nullptr) return {};
    return gguf_string_array(*pair, maps_[0].name());
  }
  std::vector<float> gguf_floats(std::string_view key) const override {
    const GgufPair* pair = gguf_.find(key);
    if (pair == nullptr) return {};
    return gguf_float_array(*pair, maps_[0].name());
  }
  std::vector<std::int64_t> gguf_ints(std::string_view key) const override {
    const GgufPair* pair = gguf_.find(key);
    if (pair == nullptr) return {};
    return gguf_int_array(*pair, maps_[0].name());
  }
  const Json& generation_config() const override { return generation_config_; }
  std::span<const File> files() const override { return files_; }
  std::span<const std::string> warnings() const override { return warnings_; }

  void open_folder(const fs::path& folder, bool config_only);
  void open_config(const fs::path& file);
  void open_gguf(const fs::path& file);
  void read_gguf(std::vector<FileBytes> maps);
  void set_config(Json config, Json quant_config);
  void index_names();

  fs::path path_, folder_;
  std::span<const QuantDialect> dialects_;  // while opening

 private:
  void read_config(const fs::path& file);
  void read_safetensors(const fs::path& folder, const std::vector<std::string>& names);
  bool read_index(const fs::path& folder, const std::vector<std::string>& present_files);
  bool does_without(const std::string& name) const;
  void add_file(FileBytes bytes);
  void add_tensor(Tensor t, int file);
  [[noreturn]] void no_weights(const fs::path& folder, const std::vector<std::string>& names) const;

  Kind kind_ = Kind::kConfigOnly;
  std::vector<FileBytes> maps_;
  std::vector<File> files_;
  std::vector<Tensor> tensors_;
  std::unordered_map<std::string_view, std::size_t> by_name_;  // views into tensors_, which never grows again
  Json config_ = Json::object(), gguf_metadata_, generation_config_;
  QuantConfig quant_;
  GgufFile gguf_;  // metadata of the first file
  std::vector<std::string> warnings_;
  std::string safetensors_format_;
};

// ---- folders -------------------------------------------------------------------------------------

void CheckpointImpl::read_config(const fs::path& file) {
  config_ = read_json_object(file);
  name_text_config(config_);
  const fs::path generation = file.parent_path() / "generation_config.json";
  if (there(generation)) generation_config_ = read_json_object(generation);
}

void CheckpointImpl::open_config(const fs::path& file) {
  folder_ = file.has_parent_path() ? file.parent_path() : fs::path(".");
  read_config(file);
  quant_ = find_quant_config(config_, folder_, {}, dialects_);
}

void CheckpointImpl::set_config(Json config, Json quant_config) {
  if (!config.is_object()) throw Error("E208", std::string("the config is ") + config.type_name() + ", expected an object");
  config_ = std::move(config);
  name_text_config(config_);
  if (quant_config.is_object()) config_["quantization_config"] = std::move(quant_config);
  quant_ = find_quant_config(config_, {}, {}, dialects_);
}

void CheckpointImpl::no_weights(const fs::path& folder, const std::vector<std::string>& names) const {
  for (const std::string& name : names)
    if (is_pickle_name(name)) refuse_pickle(shown(folder) + " holds " + printable(name) + " and no .safetensors or .gguf");
  Error e("E201", "no .safetensors or .gguf found in " + shown(folder));
  // A hub's download cache holds the model's versions one level down.
  if (const fs::path versions = folder / "snapshots"; there(versions))
    if (const auto inside = names_in(versions); !inside.empty()) throw e.hint("it is a download cache: give " + shown(versions / inside.back()));
  throw e.hint("give the folder that holds the weights; a download may be incomplete");
}

void CheckpointImpl::open_folder(const fs::path& folder, bool config_only) {
  folder_ = folder;
  const fs::path config = folder / "config.json";
  const bool has_config = there(config);
  if (config_only && has_config) return open_config(config);

  const std::vector<std::string> names = names_in(folder);
  std::vector<std::string> safetensors, ggufs;
  for (const std::string& name : names) {
    if (name.ends_with(".safetensors")) safetensors.push_back(name);
    if (name.ends_with(".gguf")) ggufs.push_back(name);
  }
  const bool has_index = there(folder / "model.safetensors.index.json");
  const bool has_model = there(folder / "model.safetensors");
  if (there(folder / "adapter_config.json") && !has_index && !has_model)
    throw Error("E201", shown(folder) + " is an adapter (adapter_config.json, adapter_model.safetensors), not a model")
        .hint("merge it into its base model with the tool that made it, and give the merged folder");

  if (safetensors.empty() && !has_index) {
    std::set<std::string> models;  // split files count once
    for (const std::string& name : ggufs) {
      const auto split = split_name(name, ".gguf");
      models.insert(split ? join_split(*split, 1, ".gguf") : name);
    }
    if (models.empty()) {
      if (!has_config && names.empty()) throw Error("E201", shown(folder) + " is empty").hint("give the folder of a model");
      no_weights(folder, names);
    }
    if (models.size() > 1) {
      std::string list;
      for (const std::string& name : models) list += (list.empty() ? "" : ", ") + printable(name);
      throw Error("E201", shown(folder) + " holds several models: " + list).hint("give the path of one .gguf file");
    }
    open_gguf(folder / *models.begin());
    folder_ = folder;
    return;
  }

  if (!has_config)
    throw Error("E201", shown(folder) + " has no config.json")
        .from("a folder of .safetensors files needs one")
        .hint("fetch config.json of the same model");
  read_config(config);
  if (!has_index || !read_index(folder, safetensors))
    read_safetensors(folder, has_model ? std::vector<std::string>{"model.safetensors"} : safetensors);
  if (safetensors_format_ == "mlx" && config_.contains("quantization"))
    throw Error("E201", shown(folder) + " is quantized for MLX, whose tensors are packed in another way")
        .from("__metadata__.format is \"mlx\" and config.json has \"quantization\"")
        .hint("use the model this one was made from, or another quantization of it");
  quant_ = find_quant_config(config_, folder, tensors_, dialects_);
}

void CheckpointImpl::add_file(FileBytes bytes) {
  files_.push_back({bytes.path(), bytes.bytes().size()});
  maps_.push_back(std::move(bytes));
}

void CheckpointImpl::add_tensor(Tensor t, int file) {
  t.file = file;
  tensors_.push_back(std::move(t));
}

// No index: model.safetensors, the only file there is, or one whole set of numbered files.
void CheckpointImpl::read_safetensors(const fs::path& folder, const std::vector<std::string>& names) {
  kind_ = Kind::kSafetensors;
  std::vector<std::string> use = names;
  if (const auto first = split_name(names.front(), ".safetensors"); names.size() > 1 || first) {
    std::string list;
    for (const std::string& name : names) list += (list.empty() ? "" : ", ") + printable(name);
    if (!first || list.size() > 2000)
      throw Error("E201", shown(folder) + " has several .safetensors files and no model.safetensors.index.json")
          .from("present: " + printable(list, 400))
          .hint("fetch model.safetensors.index.json of the same model");
    use.clear();
    for (int i = 1; i <= first->count; ++i) {
      use.push_back(join_split(*first, i, ".safetensors"));
      if (!std::binary_search(names.begin(), names.end(), use.back()))
        throw Error("E201", "missing file " + printable(use.back())).in(shown(folder)).hint(kDownload);
    }
  }
  std::unordered_set<std::string> seen;
  for (const std::string& name : use) {
    add_file(FileBytes::map(folder / name));
    SafetensorsFile parsed = parse_safetensors(maps_.back());
    safetensors_format_ = parsed.format;
    for (Tensor& t : parsed.tensors) {
      t.name = text_model_name(t.name);
      if (t.name.empty()) continue;
      if (!seen.insert(t.name).second)
        throw Error("E207", printable(t.name) + " occurs twice (duplicate tensor)")
            .in(printable(name))
            .hint("two names in the files mean the same tensor; fetch the model again");
      add_tensor(std::move(t), static_cast<int>(maps_.size()) - 1);
    }
  }
}

// Streams the index: only its weight_map is looked at.
class IndexReader {
 public:
  IndexReader(std::string name, std::string_view text) : name_(std::move(name)), text_(text) {}

  std::vector<std::string> files;                         // as first named
  std::vector<std::pair<std::string, std::size_t>> maps;  // tensor, index into files

  bool null() { return other("null"); }
  bool boolean(bool) { return other("a boolean"); }
  bool number_integer(Json::number_integer_t) { return other("a number"); }
  bool number_unsigned(Json::number_unsigned_t) { return other("a number"); }
  bool number_float(Json::number_float_t, const std::string&) { return other("a number"); }
  bool binary(Json::binary_t&) { return false; }
  bool string(std::string& file) {
    if (depth_ != 2 || !in_map_) return other("a string");
    const auto [it, added] = by_file_.emplace(file, files.size());
    if (added) {
      check(file);
      files.push_back(file);
    }
    maps.emplace_back(key_, it->second);
    return true;
  }
  bool start_object(std::size_t) {
    if (++depth_ > 8) fail("is nested more than 8 levels deep");
    if (depth_ == 2 && in_map_) found_ = true;
    return depth_ <= 2 || other("an object");
  }
  bool start_array(std::size_t) {
    if (++depth_ > 8) fail("is nested more than 8 levels deep");
    if (depth_ == 1) fail("is not a JSON object but an array");
    return other("an array");
  }
  bool key(std::string& k) {
    if (depth_ == 1) {
      in_map_ = k == "weight_map";
      if (in_map_ && found_) fail("has the key weight_map twice");
    } else if (depth_ == 2 && in_map_) {
      if (!keys_.insert(k).second) fail("names " + printable(k) + " twice");
      key_ = k;
    }
    return true;
  }
  bool end_object() { return --depth_, true; }
  bool end_array() { return --depth_, true; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& e) {
    fail("is not valid JSON (" + json_complaint(e.what()) + ")");
  }
  void finish() {
    if (!found_) fail("has no weight_map");
    if (files.empty()) fail("has an empty weight_map");
  }

 private:
  [[noreturn]] void fail(const std::string& what) {
    throw Error("E207", printable(name_) + " " + what).hint(mistaken_hint(text_, "the file is damaged; fetch it again"));
  }
  bool other(const char* kind) {
    if (depth_ == 0) fail(std::string("is not a JSON object but ") + kind);
    if (in_map_) fail("has " + std::string(kind) + " in weight_map" + (depth_ > 1 ? ", at " + printable(key_) : "") + "; expected file names");
    return true;
  }
  // A name from the file becomes a path only when it cannot lead out of the folder.
  void check(const std::string& file) {
    const bool plain = file.find_first_of("/\\") == file.npos && file.find("..") == file.npos && file.find('\0') == file.npos;
    if (!plain || file.size() > 255)
      throw Error("E207", "weight_map names the file " + printable(file) + ", which is no plain file name")
          .in(printable(name_))
          .hint("files outside the model's folder are not opened");
    if (is_pickle_name(file)) refuse_pickle("weight_map names " + printable(file) + "; only .safetensors files are read");
    if (!file.ends_with(".safetensors"))
      throw Error("E207", "weight_map names " + printable(file) + "; only .safetensors files are read")
          .in(printable(name_))
          .hint("export the model as safetensors with its own tools");
  }

  const std::string name_;
  std::string_view text_;
  int depth_ = 0;
  bool in_map_ = false, found_ = false;
  std::string key_;
  std::unordered_set<std::string> keys_;
  std::unordered_map<std::string, std::size_t> by_file_;
};

// Nothing asks for this tensor: it is left out anyway, or is the head of a model whose head is its embedding.
bool CheckpointImpl::does_without(const std::string& name) const {
  const std::string inner = text_model_name(name);
  if (inner.empty()) return true;
  const auto text = config_.find("text_config");
  const Json& own = text != config_.end() && text->is_object() && text->contains("tie_word_embeddings") ? *text : config_;
  return inner == "lm_head.weight" && own.value("tie_word_embeddings", Json()) == true;
}

// False when the folder holds a whole model, but none of the files that the index names: the index is of another copy.
bool CheckpointImpl::read_index(const fs::path& folder, const std::vector<std::string>& present_files) {
  kind_ = Kind::kSafetensors;
  const std::string index_name = "model.safetensors.index.json";
  const FileBytes bytes = FileBytes::map(folder / index_name);
  if (bytes.bytes().size() > 100'000'000)
    throw Error("E207", index_name + " has " + std::to_string(bytes.bytes().size()) + " bytes; at most 100000000 are read");
  const std::string_view text(reinterpret_cast<const char*>(bytes.bytes().data()), bytes.bytes().size());
  if (text.find('\0') != text.npos)
    throw Error("E207", index_name + " is not valid JSON (NUL byte)").hint("the file is damaged; fetch it again");
  IndexReader index(index_name, text);
  Json::sax_parse(text.begin(), text.end(), &index);
  index.finish();
  std::vector<bool> absent(index.files.size()), needed(index.files.size());
  for (std::size_t f = 0; f < index.files.size(); ++f) absent[f] = !there(folder / index.files[f]);
  const auto numbered = present_files.empty() ? std::nullopt : split_name(present_files[0], ".safetensors");
  const bool whole = there(folder / "model.safetensors") || (numbered && present_files.size() == static_cast<std::size_t>(numbered->count));
  if (whole && std::all_of(absent.begin(), absent.end(), [](bool a) { return a; })) {
    warnings_.push_back(index_name + " is not used: it names " + printable(index.files[0]) + " and others, none of which is here");
    return false;
  }
  for (const auto& [tensor, file] : index.maps)
    if (absent[file] && !needed[file]) needed[file] = !does_without(tensor);
  for (std::size_t f = 0; f < index.files.size(); ++f)
    if (needed[f]) throw Error("E201", "missing file " + printable(index.files[f])).from(index_name + " names it").in(shown(folder)).hint(kDownload);

  std::unordered_map<std::string_view, std::size_t> file_of;  // by name as spelled in the files
  for (const auto& [tensor, file] : index.maps) file_of.emplace(tensor, file);
  std::unordered_set<std::string> seen, present;
  std::size_t unlisted = 0;
  std::string examples;
  for (std::size_t f = 0; f < index.files.size(); ++f) {
    if (absent[f]) continue;
    add_file(FileBytes::map(folder / index.files[f]));
    SafetensorsFile parsed = parse_safetensors(maps_.back());
    if (safetensors_format_.empty()) safetensors_format_ = parsed.format;
    for (Tensor& t : parsed.tensors) {
      if (!present.insert(t.file_name).second)
        throw Error("E207", printable(t.file_name) + " occurs in two files (duplicate tensor)")
            .in(printable(index.files[f]))
            .hint("files of two downloads may be mixed; fetch the model again");
      const auto it = file_of.find(t.file_name);
      if (it == file_of.end()) {
        if (++unlisted <= 5) examples += (examples.empty() ? "" : ", ") + printable(t.file_name);
        continue;
      }
      if (it->second != f)
        throw Error("E202", "missing tensor " + printable(t.file_name) + " in " + printable(index.files[it->second]))
            .from(index_name + " maps it there; it lies in " + printable(index.files[f]))
            .hint("files of two downloads may be mixed; fetch the model again");
      t.name = text_model_name(t.name);
      if (t.name.empty()) continue;
      if (!seen.insert(t.name).second)
        throw Error("E207", printable(t.name) + " occurs twice (duplicate tensor)").in(printable(index.files[f]));
      add_tensor(std::move(t), static_cast<int>(maps_.size()) - 1);
    }
  }
  for (const auto& [tensor, file] : index.maps)
    if (!present.contains(tensor) && !does_without(tensor))
      throw Error("E202", "missing tensor " + printable(tensor) + " in " + printable(index.files[file]))
          .from(index_name + " maps it there")
          .hint("the download may be incomplete: fetch " + printable(index.files[file]) + " again");
  if (unlisted > 0)
    warnings_.push_back(std::to_string(unlisted) + " tensors are in the files but not in " + index_name +
                        " and are ignored: " + examples + (unlisted > 5 ? ", ..." : ""));
  return true;
}

// ---- GGUF ----------------------------------------------------------------------------------------

void CheckpointImpl::open_gguf(const fs::path& file) {
  folder_ = file.has_parent_path() ? file.parent_path() : fs::path(".");
  std::vector<FileBytes> maps;
  maps.push_back(FileBytes::map(file));
  const auto split = split_name(file.filename().string(), ".gguf");
  if (split && split->count > 1) {
    const GgufFile given = parse_gguf(maps[0]);
    if (given.integer("split.count").value_or(1) > 1) {
      maps.clear();
      for (int i = 1; i <= split->count; ++i) {
        const fs::path part = folder_ / join_split(*split, i, ".gguf");
        if (!there(part))
          throw Error("E201", "missing file " + printable(part.filename().string()))
              .from("the model is split into " + std::to_string(split->count) + " files")
              .in(shown(folder_))
              .hint(kDownload);
        maps.push_back(FileBytes::map(part));
      }
    }
  }
  read_gguf(std::move(maps));
}

void CheckpointImpl::read_gguf(std::vector<FileBytes> maps) {
  kind_ = Kind::kGguf;
  const std::int64_t n_files = static_cast<std::int64_t>(maps.size());
  std::unordered_set<std::string> seen;
  std::int64_t claimed = -1, total = 0;
  const Tensor* divisors = nullptr;
  Tensor divisors_tensor;
  for (std::int64_t f = 0; f < n_files; ++f) {
    add_file(std::move(maps[static_cast<std::size_t>(f)]));
    const std::string name = printable(maps_.back().name());
    GgufFile parsed = parse_gguf(maps_.back());
    const auto bad_split = [&](const std::string& key, const std::string& expected) {
      const auto v = parsed.integer(key);
      throw Error("E207", key + " is " + (v ? std::to_string(*v) : std::string("missing")) + ", expected " + expected)
          .in(name)
          .hint("a split model's files keep their names, NAME-00001-of-0000N.gguf, and lie in one folder");
    };
    const auto count = parsed.integer("split.count").value_or(n_files == 1 ? 1 : -1);
    // 0 and 1 both stand for a whole model in one file.
    if (n_files == 1 ? count > 1 || count < 0 : count != n_files) bad_split("split.count", std::to_string(n_files));
    if (n_files > 1 && parsed.integer("split.no").value_or(-1) != f) bad_split("split.no", std::to_string(f));
    const auto n = parsed.integer("split.tensors.count");
    if (n && claimed >= 0 && *n != claimed) bad_split("split.tensors.count", std::to_string(claimed));
    if (n && count > 1) claimed = *n;
    total += static_cast<std::int64_t>(parsed.tensors.size());
    for (Tensor& t : parsed.tensors) {
      if (!seen.insert(t.file_name).second)
        throw Error("E207", printable(t.file_name) + " occurs in two files (duplicate tensor)").in(name);
      t.file = static_cast<int>(f);
      t.name = hf_name(t.file_name);
      while (t.shape.size() > 1 && t.shape.front() == 1) t.shape.erase(t.shape.begin());  // ggml's tensors have four dimensions, of 1 where unused
      // Vectors are read by core, which knows plain element types only.
      if (t.shape.size() == 1) {
        if (t.dtype == QE_GGML + 0) t.dtype = QE_F32;
        if (t.dtype == QE_GGML + 1) t.dtype = QE_F16;
        if (t.dtype == QE_GGML + 30) t.dtype = QE_BF16;
      }
      if (t.file_name == "rope_freqs.weight") {
        divisors_tensor = t;
        divisors = &divisors_tensor;
        continue;
      }
      tensors_.push_back(std::move(t));
    }
    if (f == 0) gguf_ = std::move(parsed);
  }
  if (claimed >= 0 && claimed != total)
    throw Error("E207", "split.tensors.count is " + std::to_string(claimed) + ", the files hold " + std::to_string(total) + " tensors")
        .in(printable(maps_[0].name()))
        .hint(kDownload);
  if (!gguf_.string("general.architecture"))
    throw Error("E207", "general.architecture is missing or is no string").in(printable(maps_[0].name())).hint("is the file a language model?");

  if (const auto type = gguf_.string("general.type"); type && *type != "model")
    throw Error("E201", printable(maps_[0].name()) + " holds no model: general.type is '" + printable(std::string(*type), 60) + "'")
        .in(printable(maps_[0].name()))
        .hint("give the file of the model itself; an adapter must be merged into it first");

  gguf_metadata_ = Json::object();
  auto& object = gguf_metadata_.get_ref<Json::object_t&>();
  std::uint64_t values = 0;
  for (const GgufPair& pair : gguf_.pairs) {
    if (pair.count > kJsonArrayLimit || values + pair.count > kJsonValueLimit) continue;
    values += pair.count + 1;
    object.Container::emplace_back(std::string(pair.key), gguf_json(pair));
  }

  config_ = gguf_config(gguf_, tensors_, warnings_);
  if (divisors != nullptr) {
    if (divisors->dtype != QE_F32 || divisors->shape.size() != 1 || divisors->shape[0] > 65536)
      throw Error("E204", "rope_freqs.weight is " + dtype_name(divisors->dtype) + " " + shape_text(divisors->shape) + ", expected a vector of F32")
          .in(printable(maps_[0].name()));
    std::vector<float> values(static_cast<std::size_t>(divisors->shape[0]));
    std::memcpy(values.data(), maps_[static_cast<std::size_t>(divisors->file)].bytes().data() + divisors->offset, divisors->bytes);
    config_["rope_freq_divisors"] = values;
  }
  quant_ = {Json{{"quant_method", "gguf"}}, printable(maps_[0].name())};
}

void CheckpointImpl::index_names() {
  by_name_.reserve(tensors_.size());
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    if (!by_name_.emplace(tensors_[i].name, i).second)
      throw Error("E207", printable(tensors_[i].name) + " occurs twice (duplicate tensor)")
          .from("stored as " + printable(tensors_[i].file_name))
          .in(printable(maps_[static_cast<std::size_t>(tensors_[i].file)].name()))
          .hint("two names in the file mean the same tensor");
}

bool begins_with_gguf(const fs::path& file) {
  const FileBytes bytes = FileBytes::map(file);
  return bytes.bytes().size() >= 4 && std::memcmp(bytes.bytes().data(), "GGUF", 4) == 0;
}

}  // namespace

// ---- entry points --------------------------------------------------------------------------------

std::shared_ptr<const Checkpoint> Checkpoint::open(const fs::path& model, bool config_only, std::span<const QuantDialect> dialects) {
  auto out = std::make_shared<CheckpointImpl>();
  out->path_ = model;
  out->dialects_ = dialects;
  std::error_code error;
  const fs::file_status status = fs::status(model, error);
  const std::string name = model.filename().string();
  if (!fs::exists(status))
    throw Error("E201", "there is no file or folder " + shown(model)).hint("give the folder of a model, or a .gguf file; a model of a hub is downloaded first");
  if (fs::is_directory(status)) {
    out->open_folder(model, config_only);
  } else if (is_pickle_name(name)) {
    refuse_pickle(shown(model) + " is a pickle file by its name");
  } else if (config_only && name.ends_with(".json")) {
    out->open_config(model);
  } else if (name.ends_with(".safetensors") || name.ends_with(".json")) {
    throw Error("E201", shown(model) + " is one file of a model").hint("give the folder that holds it");
  } else if (name.ends_with(".gguf") || begins_with_gguf(model)) {
    out->open_gguf(model);
  } else {
    throw Error("E201", shown(model) + " is neither a folder nor a .gguf file").hint("give the folder of a model, or a .gguf file");
  }
  out->index_names();
  out->dialects_ = {};
  return out;
}

std::shared_ptr<const Checkpoint> Checkpoint::from_config(Json config, Json quant_config, std::span<const QuantDialect> dialects) {
  auto out = std::make_shared<CheckpointImpl>();
  out->dialects_ = dialects;
  out->set_config(std::move(config), std::move(quant_config));
  out->dialects_ = {};
  return out;
}

std::shared_ptr<const Checkpoint> gguf_from_memory(std::span<const std::byte> bytes, const std::string& name) {
  auto out = std::make_shared<CheckpointImpl>();
  out->path_ = name;
  std::vector<FileBytes> files;
  files.push_back(FileBytes::borrow(name, bytes));
  out->read_gguf(std::move(files));
  out->index_names();
  return out;
}

}  // namespace qengine
