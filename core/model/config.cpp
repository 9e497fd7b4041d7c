#include "core/model/config.hpp"

#include <qe/plugin.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "core/base/error.hpp"
#include "core/model/gguf.hpp"
#include "core/model/text.hpp"

namespace qengine {
namespace {

constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();
// Limits that no model comes near. They keep what is derived from a field small whatever the file says.
constexpr std::int64_t kMaxLayers = 8192, kMaxHeads = 65536, kMaxHeadDim = 65536, kMaxHidden = 1 << 24, kMaxInner = 1 << 26;

// What a family does where config.json says nothing (formats.md 2.1).
struct Family {
  const char* architecture;
  const char* alias;           // an older spelling
  const char* model_type;
  std::int64_t kv_heads;       // 0: as many as heads
  std::int64_t head_dim;       // 0: hidden_size / heads
  std::int64_t max_position;
  bool qkv_bias;               // always there
  bool attention_bias;         // the key attention_bias gives q, k, v and o one
  bool mlp_bias;               // the key mlp_bias is looked at
  bool qk_norm;
  bool window_switch;          // sliding_window counts only with use_sliding_window
  std::int64_t window;         // sliding_window; 0: the family has none
  // Sizes that a config must give itself, but that a wrapper's text_config leaves out where they have
  // the value of the class.
  std::int64_t layers, hidden, inner, heads, vocab;
};

constexpr Family kFamilies[] = {
    {"LlamaForCausalLM", "LLaMAForCausalLM", "llama", 0, 0, 2048, false, true, true, false, false, 0, 32, 4096, 11008, 32, 32000},
    {"MistralForCausalLM", "", "mistral", 8, 0, 131072, false, false, false, false, false, 4096, 32, 4096, 14336, 32, 32000},
    {"Qwen2ForCausalLM", "", "qwen2", 32, 0, 32768, true, false, false, false, true, 4096, 32, 4096, 22016, 32, 151936},
    {"Qwen3ForCausalLM", "", "qwen3", 32, 128, 32768, false, true, false, true, true, 4096, 32, 4096, 22016, 32, 151936},
};

std::string dumped(const Json& v) {
  if (v.is_string()) return "'" + printable(v.get_ref<const std::string&>(), 60) + "'";
  if (v.is_structured()) return std::string("an ") + (v.is_array() ? "array" : "object");
  return printable(v.dump(), 60);
}

// Fields of a config, with text_config in front of the top level, and their errors.
class Fields {
 public:
  explicit Fields(const Checkpoint& checkpoint) : top_(checkpoint.config()) {
    const auto text = top_.find("text_config");
    if (text != top_.end() && text->is_object()) text_ = &*text;
    if (checkpoint.kind() == Checkpoint::Kind::kGguf) {
      gguf_ = true;
      file_ = printable(checkpoint.files()[0].path.filename().string());
      const auto type = top_.find("model_type");
      if (type != top_.end() && type->is_string()) gguf_architecture_ = *type;
    }
  }

  // nullptr when absent or null.
  const Json* get(const char* key) const {
    for (const Json* level : {text_, &top_}) {
      if (level == nullptr) continue;
      const auto it = level->find(key);
      if (it != level->end() && !it->is_null()) return &*it;
    }
    return nullptr;
  }
  // The key is there and holds null.
  bool null(const char* key) const {
    return get(key) == nullptr && (top_.contains(key) || (text_ != nullptr && text_->contains(key)));
  }
  const Json& top() const { return top_; }
  const Json* text() const { return text_; }
  bool gguf() const { return gguf_; }

  std::string spelled(const std::string& key) const {
    std::string out;
    if (gguf_) out = gguf_key(gguf_architecture_, key.substr(key.rfind('.') + 1));
    return out.empty() ? key : out;
  }

  [[noreturn]] void bad(const std::string& key, const std::string& has, const std::string& expected,
                        const std::string& hint = "the file is damaged, was edited by hand, or is of a kind that is not supported") const {
    throw Error("E208", spelled(key) + " " + has + ", expected " + expected).in(file_).hint(hint);
  }
  [[noreturn]] void missing(const std::string& key) const {
    throw Error("E208", spelled(key) + " is missing").in(file_).hint("the file is incomplete; fetch it again");
  }

  std::int64_t integer(const char* key, std::int64_t low, std::int64_t high, std::optional<std::int64_t> otherwise) const {
    return integer(key, get(key), low, high, otherwise);
  }
  std::int64_t integer(const std::string& key, const Json* v, std::int64_t low, std::int64_t high,
                       std::optional<std::int64_t> otherwise) const {
    if (v == nullptr) {
      if (!otherwise) missing(key);
      return *otherwise;
    }
    const std::string expected = "an integer from " + std::to_string(low) + " to " + std::to_string(high);
    if (!v->is_number_integer() || (v->is_number_unsigned() && v->get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) ||
        v->get<std::int64_t>() < low || v->get<std::int64_t>() > high)
      bad(key, "is " + dumped(*v), expected);
    return v->get<std::int64_t>();
  }

  // low < value <= high, or low <= value with `closed`.
  double number(const std::string& key, const Json* v, double low, bool closed, std::optional<double> otherwise) const {
    if (v == nullptr) {
      if (!otherwise) missing(key);
      return *otherwise;
    }
    const double d = v->is_number() ? v->get<double>() : std::nan("");
    if (!std::isfinite(d) || d < low || (!closed && d == low) || d > 1e30) {
      std::string bound = std::to_string(low);
      bound.erase(bound.find_last_not_of('0') + 1);
      if (bound.ends_with('.')) bound.pop_back();
      bad(key, "is " + dumped(*v), std::string("a number ") + (closed ? "of at least " : "above ") + bound);
    }
    return d;
  }
  double number(const char* key, double low, bool closed, std::optional<double> otherwise) const {
    return number(key, get(key), low, closed, otherwise);
  }

  bool flag(const char* key, bool otherwise) const {
    const Json* v = get(key);
    if (v == nullptr) return otherwise;
    if (!v->is_boolean()) bad(key, "is " + dumped(*v), "true or false");
    return v->get<bool>();
  }

  std::string text(const std::string& key, const Json& v) const {
    if (!v.is_string()) bad(key, "is " + dumped(v), "a string");
    return v.get<std::string>();
  }

 private:
  const Json& top_;
  const Json* text_ = nullptr;
  bool gguf_ = false;
  std::string gguf_architecture_, file_ = "config.json";
};

// `wrapped`: the text model's own text_config named it.
const Family& find_family(const Fields& f, bool& wrapped) {
  const auto by = [&](const Json* level, bool type_too) -> const Family* {
    if (level == nullptr) return nullptr;
    const auto list = level->find("architectures");
    if (list != level->end() && list->is_array() && !list->empty() && list->front().is_string()) {
      const auto& name = list->front().get_ref<const std::string&>();
      for (const Family& family : kFamilies)
        if (name == family.architecture || (*family.alias && name == family.alias)) return &family;
      if (!type_too) return nullptr;
    }
    const auto type = level->find("model_type");
    if (type != level->end() && type->is_string())
      for (const Family& family : kFamilies)
        if (*type == family.model_type) return &family;
    return nullptr;
  };
  // model_type decides only where no architecture is named, or inside a wrapper's text_config.
  const bool named = f.top().contains("architectures") && f.top()["architectures"].is_array() && !f.top()["architectures"].empty();
  wrapped = false;
  if (const Family* family = by(&f.top(), !named)) return *family;
  wrapped = true;
  if (const Family* family = by(f.text(), true)) return *family;

  std::string has = "is missing";
  if (const Json* v = f.get("architectures"))
    has = "is " + (v->is_array() && !v->empty() ? dumped(v->front()) : dumped(*v));
  else if (const Json* type = f.get("model_type"))
    has = "is missing and model_type is " + dumped(*type);
  std::string list;
  for (const Family& family : kFamilies) list += (list.empty() ? "" : ", ") + std::string(family.architecture);
  if (f.gguf()) {
    has = "is " + dumped(f.top().value("model_type", Json()));
    list = "llama, qwen2, qwen3";
  }
  throw Error("E209", f.spelled("architectures") + " " + has + ", which is not supported")
      .from("supported: " + list)
      .hint("use a model of one of these architectures");
}

std::string rope_kind(const Fields& f, const std::string& where, const Json& object) {
  for (const char* key : {"rope_type", "type"}) {
    const auto it = object.find(key);
    if (it == object.end() || it->is_null()) continue;
    const std::string kind = f.text(where + key, *it);
    if (kind == "mrope") return "default";  // for text alone the three position axes are one
    for (const char* known : {"default", "linear", "dynamic", "llama3", "yarn"})
      if (kind == known) return kind;
    f.bad(where + key, "(rope_type) is " + dumped(*it), "default, linear, dynamic, llama3 or yarn",
          "this rotary scaling is not implemented; without it the text would be wrong");
  }
  return "default";
}

void read_rope(const Fields& f, ModelConfig& m) {
  RopeConfig& rope = m.rope;
  const auto object = [&](const char* key) -> const Json* {
    const Json* v = f.get(key);
    if (v != nullptr && !v->is_object()) f.bad(key, "is " + dumped(*v), "an object");
    return v;
  };
  const Json* scaling = object("rope_scaling");
  const Json* parameters = object("rope_parameters");
  std::string where = "rope_scaling.";
  if (parameters != nullptr) {
    where = "rope_parameters.";
    if (parameters->contains("full_attention") || parameters->contains("sliding_attention")) {
      // By layer type. One table serves all layers, so the kinds in use must agree.
      const bool some_full = std::count(m.window.begin(), m.window.end(), 0) > 0;
      const bool some_slide = std::count(m.window.begin(), m.window.end(), 0) < m.num_layers;
      const Json full = parameters->value("full_attention", Json()), sliding = parameters->value("sliding_attention", Json());
      if (some_full && some_slide && full != sliding)
        f.bad("rope_parameters", "differs between full_attention and sliding_attention", "the same for all layers",
              "models that mix two rotary embeddings are not supported");
      const char* use = some_full ? "full_attention" : "sliding_attention";
      const auto it = parameters->find(use);
      if (it == parameters->end() || !it->is_object())
        f.bad(where + use, it == parameters->end() ? "is missing" : "is " + dumped(*it), "an object",
              "layers without rotary embedding are not supported");
      parameters = &*it;
      where += std::string(use) + ".";
    }
    if (scaling != nullptr && rope_kind(f, "rope_scaling.", *scaling) != rope_kind(f, where, *parameters))
      m.warnings.push_back("config.json has both rope_parameters and rope_scaling, and they differ: rope_parameters is used");
  }
  const Json* source = parameters != nullptr ? parameters : scaling;
  const auto in_source = [&](const char* key) -> const Json* {
    if (source == nullptr) return nullptr;
    const auto it = source->find(key);
    return it == source->end() || it->is_null() ? nullptr : &*it;
  };
  if (source != nullptr) rope.kind = rope_kind(f, where, *source);

  const Json* theta = in_source("rope_theta");
  rope.theta = theta != nullptr ? f.number(where + "rope_theta", theta, 1, false, {}) : f.number("rope_theta", 1, false, 10000.0);
  if (theta != nullptr && f.get("rope_theta") != nullptr && *f.get("rope_theta") != *theta)
    m.warnings.push_back("config.json has two values of rope_theta: that of " + where.substr(0, where.find('.')) + " is used");

  const Json* partial = in_source("partial_rotary_factor");
  if (partial == nullptr) partial = f.get("partial_rotary_factor");
  const double share = f.number("partial_rotary_factor", partial, 0, false, 1.0);
  rope.rot_dim = static_cast<std::int32_t>(std::min(m.head_dim * share, 1e6) + 1e-6);
  if (share > 1 || rope.rot_dim < 2 || rope.rot_dim % 2 != 0)
    f.bad(partial != nullptr ? "partial_rotary_factor" : "head_dim",
          "gives " + std::to_string(rope.rot_dim) + " rotary dimensions of " + std::to_string(m.head_dim),
          "an even number from 2 to head_dim");

  const auto field = [&](const char* key, double low, bool closed, std::optional<double> otherwise) {
    return f.number(where + key, in_source(key), low, closed, otherwise);
  };
  const auto original_length = [&] {
    const Json* v = in_source("original_max_position_embeddings");
    if (v == nullptr) v = f.get("original_max_position_embeddings");
    rope.original_max_position = f.integer(where + "original_max_position_embeddings", v, 1, kInt32Max, m.max_position);
  };
  if (rope.kind != "default") {
    rope.factor = field("factor", 1, true, {});
    original_length();
  }
  if (rope.kind == "llama3") {
    rope.low_freq_factor = field("low_freq_factor", 0, false, {});
    rope.high_freq_factor = field("high_freq_factor", 0, false, {});
    if (rope.low_freq_factor >= rope.high_freq_factor)
      f.bad(where + "low_freq_factor", "is " + dumped(*in_source("low_freq_factor")),
            "less than high_freq_factor " + dumped(*in_source("high_freq_factor")));
  }
  if (rope.kind == "yarn") {
    rope.beta_fast = field("beta_fast", 0, false, 32.0);
    rope.beta_slow = field("beta_slow", 0, false, 1.0);
    rope.attention_factor = field("attention_factor", 0, false, 0.0);
    rope.mscale = field("mscale", 0, true, 0.0);
    rope.mscale_all_dim = field("mscale_all_dim", 0, true, 0.0);
    if (const Json* v = in_source("truncate")) {
      if (!v->is_boolean()) f.bad(where + "truncate", "is " + dumped(*v), "true or false");
      rope.truncate = v->get<bool>();
    }
  }
  if (const Json* v = f.gguf() ? f.get("rope_freq_divisors") : nullptr) {
    if (!v->is_array() || v->size() != static_cast<std::size_t>(rope.rot_dim / 2))
      f.bad("rope_freqs.weight", "has " + std::to_string(v->size()) + " values", std::to_string(rope.rot_dim / 2));
    for (const Json& d : *v) {
      const double value = d.is_number() ? d.get<double>() : 0.0;
      if (!std::isfinite(value) || value < 1e-6) f.bad("rope_freqs.weight", "holds " + dumped(d), "finite numbers above 0");
      rope.freq_divisors.push_back(static_cast<float>(value));
    }
  }
}

void read_windows(const Fields& f, const Family& family, ModelConfig& m) {
  m.window.assign(static_cast<std::size_t>(m.num_layers), 0);
  // Absent: what the class has. null: none.
  const bool of_class = !f.gguf() && family.window > 0 && f.get("sliding_window") == nullptr && !f.null("sliding_window") &&
                        (!family.window_switch || f.flag("use_sliding_window", false));
  const auto window = [&]() {
    return static_cast<std::int32_t>(f.integer("sliding_window", 1, kInt32Max, of_class ? std::optional(family.window) : std::nullopt));
  };
  if (f.flag("use_bidirectional_attention", false))
    f.bad("use_bidirectional_attention", "is true", "false", "models that look ahead (embedding models) are not supported");
  if (const Json* types = f.get("layer_types")) {
    if (!types->is_array() || types->size() != m.window.size())
      f.bad("layer_types", types->is_array() ? "has " + std::to_string(types->size()) + " entries" : "is " + dumped(*types),
            std::to_string(m.num_layers) + " entries, one a layer");
    for (std::size_t i = 0; i < m.window.size(); ++i) {
      const Json& type = (*types)[i];
      if (type == "sliding_attention")
        m.window[i] = window();
      else if (type != "full_attention")
        f.bad("layer_types[" + std::to_string(i) + "]", "is " + dumped(type), "full_attention or sliding_attention");
    }
    return;
  }
  if (f.get("sliding_window") == nullptr && !of_class) return;
  if (family.window_switch) {
    if (!f.flag("use_sliding_window", false)) return;
    const std::int64_t first = f.integer("max_window_layers", 0, kInt32Max, 28);
    for (std::int64_t i = first; i < m.num_layers; ++i) m.window[static_cast<std::size_t>(i)] = window();
    return;
  }
  if (m.architecture == "MistralForCausalLM" || f.gguf()) std::fill(m.window.begin(), m.window.end(), window());
}

void read_tokens(const Fields& f, const Checkpoint& checkpoint, ModelConfig& m) {
  const auto add = [&](const std::string& key, const Json& v) {
    const std::int64_t id = f.integer(key, &v, -1, kInt32Max, {});
    if (id >= 0 && std::find(m.eos_ids.begin(), m.eos_ids.end(), id) == m.eos_ids.end())
      m.eos_ids.push_back(static_cast<std::int32_t>(id));
  };
  const auto add_all = [&](const std::string& key, const Json* v) {
    if (v == nullptr || v->is_null()) return;
    if (!v->is_array()) return add(key, *v);
    if (v->size() > 4096) f.bad(key, "has " + std::to_string(v->size()) + " entries", "at most 4096");
    for (const Json& id : *v) add(key, id);
  };
  const auto one = [&](const char* key) -> std::int32_t {
    const Json* v = f.get(key);
    if (v != nullptr && v->is_array()) v = v->empty() ? nullptr : &v->front();
    return static_cast<std::int32_t>(f.integer(key, v, -1, kInt32Max, -1));
  };
  add_all("eos_token_id", f.get("eos_token_id"));
  const Json& generation = checkpoint.generation_config();
  if (generation.is_object()) {
    const auto it = generation.find("eos_token_id");
    if (it != generation.end()) add_all("generation_config.json eos_token_id", &*it);
  }
  m.bos_id = one("bos_token_id");
  m.pad_id = one("pad_token_id");
}

std::string compute_dtype(const Fields& f, const Checkpoint& checkpoint, ModelConfig& m) {
  for (const char* key : {"dtype", "torch_dtype"}) {
    const Json* v = f.get(key);
    if (v == nullptr || v->is_object()) continue;  // an object: by the parts of a wrapper
    std::string name = f.text(key, *v);
    if (name.starts_with("torch.")) name.erase(0, 6);
    if (name == "bfloat16" || name == "float16" || name == "float32") return name;
    if (name != "auto") m.warnings.push_back(std::string(key) + " is " + dumped(*v) + "; the tensors' own dtype is used");
  }
  for (const char* name : {"model.embed_tokens.weight", "model.norm.weight"})
    if (const Tensor* t = f.gguf() ? nullptr : checkpoint.find(name)) {
      if (t->dtype == QE_BF16) return "bfloat16";
      if (t->dtype == QE_F16) return "float16";
      if (t->dtype == QE_F32) return "float32";
    }
  return "";
}

}  // namespace

ModelConfig read_model_config(const Checkpoint& checkpoint) {
  const Fields f(checkpoint);
  bool wrapped = false;
  const Family& family = find_family(f, wrapped);
  ModelConfig m;
  m.architecture = family.architecture;
  m.model_type = family.model_type;
  const auto size = [&](const char* key, std::int64_t high, std::int64_t of_class) {
    return f.integer(key, 1, high, wrapped ? std::optional(of_class) : std::nullopt);
  };
  m.num_layers = static_cast<std::int32_t>(size("num_hidden_layers", kMaxLayers, family.layers));
  m.vocab_size = size("vocab_size", kInt32Max, family.vocab);
  m.hidden_size = size("hidden_size", kMaxHidden, family.hidden);
  m.intermediate_size = size("intermediate_size", kMaxInner, family.inner);
  m.num_heads = static_cast<std::int32_t>(size("num_attention_heads", kMaxHeads, family.heads));
  m.num_kv_heads = static_cast<std::int32_t>(f.integer("num_key_value_heads", 1, kMaxHeads,
      f.gguf() || family.kv_heads == 0 || f.null("num_key_value_heads") ? m.num_heads : family.kv_heads));
  if (m.num_kv_heads > m.num_heads || m.num_heads % m.num_kv_heads != 0)
    f.bad("num_key_value_heads", "is " + std::to_string(m.num_kv_heads), "a divisor of num_attention_heads, which is " + std::to_string(m.num_heads));

  // GGUF has no class defaults: its converter writes the head size wherever it is not hidden / heads.
  const bool head_dim_given = f.get("head_dim") != nullptr;
  // null is neither a size nor the class's: a norm of heads has theirs, if there is one.
  const Tensor* head_norm = f.null("head_dim") ? checkpoint.find("model.layers.0.self_attn.q_norm.weight") : nullptr;
  if (head_norm != nullptr && head_norm->shape.size() == 1 && head_norm->shape[0] > 0 && head_norm->shape[0] <= kMaxHeadDim) {
    m.head_dim = static_cast<std::int32_t>(head_norm->shape[0]);
  } else if (!head_dim_given && (f.gguf() || family.head_dim == 0 || f.null("head_dim"))) {
    if (m.hidden_size % m.num_heads != 0)
      f.bad("num_attention_heads", "is " + std::to_string(m.num_heads) + " and head_dim is missing",
            "a divisor of hidden_size, which is " + std::to_string(m.hidden_size));
    m.head_dim = static_cast<std::int32_t>(std::min<std::int64_t>(m.hidden_size / m.num_heads, kInt32Max));
    if (m.head_dim > kMaxHeadDim) f.bad("num_attention_heads", "gives heads of " + std::to_string(m.head_dim) + " dimensions", "at most " + std::to_string(kMaxHeadDim));
  } else {
    m.head_dim = static_cast<std::int32_t>(f.integer("head_dim", 1, kMaxHeadDim, family.head_dim));
  }
  if (m.head_dim % 2 != 0)
    f.bad(head_dim_given ? "head_dim" : "num_attention_heads",
          head_dim_given ? "is " + std::to_string(m.head_dim) : "gives a head_dim of " + std::to_string(m.head_dim),
          "an even number: rotary embedding turns pairs");
  if (f.integer("value_length", 1, kMaxHeadDim, m.head_dim) != m.head_dim)
    f.bad("attention.value_length", "is " + dumped(*f.get("value_length")), "the key length " + std::to_string(m.head_dim));

  m.max_position = f.integer("max_position_embeddings", 1, kInt32Max, f.gguf() ? std::nullopt : std::optional(family.max_position));
  m.rms_eps = static_cast<float>(f.number("rms_norm_eps", 0, false, f.gguf() ? std::nullopt : std::optional(1e-6)));
  m.attention_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(m.head_dim)));
  m.tied = f.flag("tie_word_embeddings", false);
  m.qk_norm = family.qk_norm;

  const bool attention_bias = family.attention_bias && f.flag("attention_bias", false);
  m.q_bias = m.k_bias = m.v_bias = family.qkv_bias || attention_bias;
  m.o_bias = attention_bias;
  m.mlp_bias = family.mlp_bias && f.flag("mlp_bias", false);
  if (f.gguf()) {
    // No key says so: the tensors do.
    const auto has = [&](const char* module) { return checkpoint.find(std::string("model.layers.0.") + module + ".bias") != nullptr; };
    m.q_bias = family.qkv_bias || has("self_attn.q_proj");
    m.k_bias = family.qkv_bias || has("self_attn.k_proj");
    m.v_bias = family.qkv_bias || has("self_attn.v_proj");
    m.o_bias = has("self_attn.o_proj");
    m.mlp_bias = has("mlp.gate_proj");
  }

  const Json* act = f.get("hidden_act");
  if (act == nullptr) act = f.get("hidden_activation");
  if (act != nullptr) {
    const std::string name = f.text("hidden_act", *act);
    if (name == "silu" || name == "swish") m.activation = Activation::kSilu;
    else if (name == "gelu_pytorch_tanh" || name == "gelu_new" || name == "gelu_fast") m.activation = Activation::kGeluTanh;
    else if (name == "gelu") m.activation = Activation::kGelu;
    else f.bad("hidden_act", "is " + dumped(*act), "silu, gelu or gelu_pytorch_tanh");
  }
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"})
    if (const Json* v = f.get(key); v != nullptr && !(v->is_number() && v->get<double>() == 0))
      f.bad(key, "is " + dumped(*v), "none", "this model limits its logits in a way that is not supported");

  if (f.integer("num_local_experts", 0, kInt32Max, 0) > 1)
    f.bad("num_local_experts", "is " + dumped(*f.get("num_local_experts")), "0", "mixtures of experts are not supported");

  read_windows(f, family, m);
  read_rope(f, m);
  read_tokens(f, checkpoint, m);
  m.dtype = compute_dtype(f, checkpoint, m);
  return m;
}

}  // namespace qengine
