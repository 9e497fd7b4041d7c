// 95x: end to end: a whole model through the engine, against the same model in float32.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>

#include "core/base/error.hpp"
#include "core/base/log.hpp"
#include "core/conformance/made_up.hpp"
#include "core/conformance/subject.hpp"
#include "core/engine/engine.hpp"
#include "core/model/safetensors_writer.hpp"

namespace qengine::conformance {
namespace {

namespace fs = std::filesystem;

class Scratch {
 public:
  Scratch() {
    std::string name = (fs::temp_directory_path() / "qe-conform-XXXXXX").string();
    if (!mkdtemp(name.data())) fail("no temporary folder can be made");
    path = name;
  }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  fs::path path;
};

const char* file_type(std::int32_t dtype) {
  static constexpr const char* kNames[] = {"?", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E8M0", "I8", "U8", "I16", "I32", "I64", "F4"};
  return dtype >= 0 && dtype < static_cast<int>(std::size(kNames)) ? kNames[dtype] : "?";
}

void write_model(const fs::path& folder, Json config, const std::map<std::string, KitTensors::Entry, std::less<>>& tensors) {
  fs::create_directories(folder);
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, e] : tensors) entries.push_back({name, file_type(e.dtype), e.shape});
  SafetensorsWriter out(folder / "model.safetensors", entries);
  for (const auto& [name, e] : tensors) out.write(e.data);
  out.finish();
  write_file_safely(folder / "config.json", config.dump());
}

// Everything of a made-up model that is not the plugin's: norms, embedding, head.
void add_plain(Case& c) {
  const ModelConfig& m = c.config;
  const auto plain = [&](const std::string& name, std::vector<std::int64_t> shape, float low, float high) {
    std::int64_t n = 1;
    for (const std::int64_t d : shape) n *= d;
    std::vector<float> v(static_cast<std::size_t>(n));
    std::uint32_t state = static_cast<std::uint32_t>(name.size() * 2654435761u + 1);
    for (float& x : v) state = state * 1664525u + 1013904223u, x = low + (high - low) * float(state >> 8) / 16777216.0f;
    if (!c.tensors.entries.contains(name)) c.tensors.entries[name] = tensor_of(QE_BF16, std::move(shape), v);
  };
  for (int i = 0; i < m.num_layers; ++i)
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) plain("model.layers." + std::to_string(i) + "." + norm + ".weight", {m.hidden_size}, 0.8f, 1.2f);
  plain("model.norm.weight", {m.hidden_size}, 0.8f, 1.2f);
  plain("model.embed_tokens.weight", {m.vocab_size, m.hidden_size}, -1.0f, 1.0f);
  plain("lm_head.weight", {m.vocab_size, m.hidden_size}, -0.2f, 0.2f);
}

EngineOptions options_of(const Subject& s, const fs::path& model, const fs::path& plugins) {
  EngineOptions o;
  o.model = model;
  o.plugins.builtin_dir = s.builtin_plugins;
  if (!plugins.empty()) {
    o.plugins.paths = {plugins};
    o.plugins.trust = Trust::kAny;
  }
  o.threads = 2;
  o.need_tokenizer = false;
  o.max_model_len = 128;
  o.format.activation_quant = ActivationQuant::kOff;  // weights are what is compared
  return o;
}

// The plugin alone in a folder, with its manifest.
fs::path plugin_folder(const Subject& s, const fs::path& scratch) {
  const fs::path folder = scratch / "plugins";
  fs::create_directories(folder);
  const std::string manifest = s.library.stem().string() + std::string(kManifestSuffix);
  fs::copy_file(s.library, folder / s.library.filename());
  fs::copy_file(s.library.parent_path() / manifest, folder / manifest);
  return folder;
}

std::vector<std::vector<float>> logits_of(Engine& engine) {
  std::vector<std::int32_t> ids;
  const auto vocab = static_cast<std::int32_t>(engine.config().vocab_size);
  for (std::int32_t i = 0; i < 48; ++i) ids.push_back((i * 37 + 11) % vocab);
  std::vector<std::vector<float>> out;
  engine.all_logits(ids, [&](std::int64_t, std::span<const float> row) { out.emplace_back(row.begin(), row.end()); });
  return out;
}

std::vector<std::int32_t> greedy(Engine& engine) {
  Request r;
  r.prompt = {5, 6, 7, 8};
  r.sampling.temperature = 0;
  r.sampling.max_tokens = 24;
  r.sampling.ignore_eos = true;
  std::vector<Request> requests;
  requests.push_back(std::move(r));
  std::vector<std::int32_t> out;
  const auto answers = engine.generate(std::move(requests));
  for (const Output& o : answers.at(0)) {
    if (!o.error.empty()) fail("the engine stops: %s", o.error.c_str());
    if (o.token >= 0) out.push_back(o.token);
  }
  return out;
}

struct Distance {
  double kld = 0;
  int same_top = 0, n = 0;
};

Distance distance(const std::vector<std::vector<float>>& p, const std::vector<std::vector<float>>& q) {
  Distance d;
  for (std::size_t i = 0; i < p.size(); ++i) {
    const auto log_sum = [](const std::vector<float>& row) {
      const float top = *std::max_element(row.begin(), row.end());
      double sum = 0;
      for (const float x : row) sum += std::exp(double(x) - double(top));
      return double(top) + std::log(sum);
    };
    const double a = log_sum(p[i]), b = log_sum(q[i]);
    for (std::size_t t = 0; t < p[i].size(); ++t) d.kld += std::exp(double(p[i][t]) - a) * ((double(p[i][t]) - a) - (double(q[i][t]) - b)) / double(p.size());
    d.same_top += std::max_element(p[i].begin(), p[i].end()) - p[i].begin() == std::max_element(q[i].begin(), q[i].end()) - q[i].begin();
    ++d.n;
  }
  return d;
}

// The model in float32, as the plugin dequantizes it.
fs::path write_reference(const EngineOptions& o, const fs::path& folder) {
  PluginHost host(o.plugins);
  host.scan();
  const auto checkpoint = Checkpoint::open(o.model, false, host.dialects());
  const ModelConfig config = read_model_config(*checkpoint);
  FormatOptions format = o.format;
  format.exact = true;
  const auto plan = FormatPlan::make(host, checkpoint, config, format);
  ThreadPool pool(2);
  std::map<std::string, KitTensors::Entry, std::less<>> out;
  for (std::size_t i = 0; i < plan->layers().size(); ++i) {
    const LayerSpec& spec = plan->layers()[i];
    const auto linear = plan->load(i, pool);
    std::int64_t row = 0;
    for (const PartSpec& p : spec.parts) {
      std::vector<float> w(static_cast<std::size_t>(p.n * spec.k));
      linear->dequant(row, row + p.n, w.data());
      row += p.n;
      out[(spec.parts.size() == 1 && p.role == QE_ROLE_LM_HEAD && config.tied ? std::string("model.embed_tokens") : p.name) + ".weight"] = tensor_of(QE_F32, {p.n, spec.k}, w);
      if (p.bias) out[p.name + ".bias"] = tensor_of(QE_F32, {p.n}, plan->dense(p.name + ".bias", std::vector<std::int64_t>{p.n}));
    }
  }
  for (const Tensor& t : checkpoint->tensors())
    if (t.shape.size() == 1 && t.name.ends_with("norm.weight")) out[t.name] = tensor_of(QE_F32, t.shape, plan->dense(t.name, t.shape));
  Json json = checkpoint->config();
  json.erase("quantization_config");
  json.erase("compression_config");
  json["torch_dtype"] = "float32";
  json["tie_word_embeddings"] = config.tied;
  write_model(folder, json, out);
  return folder;
}

// `kld`: the most that int8 activations may cost. Made-up weights are of any size, and large ones sharpen every distribution.
void compare(const EngineOptions& o, const EngineOptions& reference_options, const std::string& name, double kld, Notes& notes) {
  const auto reference = Engine::load(reference_options);
  const auto want = logits_of(*reference);
  const auto text_of_reference = greedy(*reference);
  for (const bool exact : {true, false}) {
    EngineOptions mine = o;
    mine.exact = mine.format.exact = exact;
    const auto engine = Engine::load(mine);
    const auto got = logits_of(*engine);
    for (const auto& row : got)
      for (const float x : row)
        if (!std::isfinite(x)) fail("%s: logits are not finite", name.c_str());
    const Distance d = distance(want, got);
    notes.push_back(text("%s%s: KLD %.1e, same top token %d of %d", name.c_str(), exact ? ", exact" : "", d.kld, d.same_top, d.n));
    // exact sums differ by their order alone
    if (d.kld > (exact ? 1e-6 : kld)) fail("%s%s: mean KLD %.1e against float32, at most %.0e", name.c_str(), exact ? " (exact)" : "", d.kld, exact ? 1e-6 : kld);
    if (exact && greedy(*engine) != text_of_reference) fail("%s: the greedy text differs from float32's", name.c_str());
    if (!exact && d.same_top * 10 < d.n * 8) fail("%s: the most likely token is the same in %d of %d positions, at least 80 %% were expected", name.c_str(), d.same_top, d.n);
    const std::uint64_t bytes = engine->memory().weights_bytes;
    if (bytes == 0) fail("%s: the engine reports no bytes of weights", name.c_str());
  }
}

void whole_model(const Subject& s, Notes& notes) {
  set_log_level("error");
  const Scratch scratch;
  const fs::path plugins = plugin_folder(s, scratch.path);
  int n = 0;
  try {
    Session session(s);
    if (session.kv) {
      // Weights of the engine's own; the cache is the plugin's.
      Case c;
      c.config = made_up_config();
      c.model_json = made_up_config_json();
      for (const LayerSpec& l : layer_specs(c.config))
        for (const PartSpec& p : l.parts) {
          qe_want w{};
          w.rank = 2, w.dtypes = 1u << QE_BF16, w.dim[0] = p.n, w.dim[1] = l.k;
          if (l.index >= 0) c.tensors.entries[p.name + ".weight"] = made_up_tensor(p.name + ".weight", w, l.k);
        }
      add_plain(c);
      write_model(scratch.path / "kv", c.model_json, c.tensors.entries);
      for (std::uint32_t i = 0; i < session.plugin->n_methods; ++i) {
        EngineOptions o = options_of(s, scratch.path / "kv", plugins), own = o;
        own.exact = own.format.exact = true;
        own.kv_cache_dtype = "float32";
        o.exact = o.format.exact = true;
        o.kv_plugin = std::string(session.plugin->name) + ":" + session.plugin->methods[i]->name;
        const auto with = Engine::load(o), without = Engine::load(own);
        const Distance d = distance(logits_of(*without), logits_of(*with));
        notes.push_back(text("%s: KLD %.1e, same top token %d of %d", session.plugin->methods[i]->name, d.kld, d.same_top, d.n));
        if (!(d.kld <= 0.05)) fail("%s: mean KLD %.1e against a float32 cache, at most 0.05", session.plugin->methods[i]->name, d.kld);
        if (d.kld == 0) fail("%s: not a bit differs from a float32 cache: the plugin was not used", session.plugin->methods[i]->name);
      }
      return;
    }
    for (const auto& c : session.cases()) {
      const fs::path folder = scratch.path / ("model" + std::to_string(n)), reference = scratch.path / ("reference" + std::to_string(n));
      ++n;
      fs::path model = folder;
      if (c->made_up()) {
        for (const LayerSpec& l : c->layers) {
          if (l.index < 0) continue;
          for (const PartSpec& p : l.parts) {
            LayerArgs one(*c, {{p.name, p.role, p.n}}, l.k);
            session.make_up(one);
          }
        }
        add_plain(*c);
        Json config = c->model_json;
        if (c->quant.is_object()) config["quantization_config"] = c->quant;
        write_model(folder, config, c->tensors.entries);
      } else {
        model = c->checkpoint->path();
      }
      EngineOptions o = options_of(s, model, plugins);
      if (c->options.is_object()) o.plugins.plugin_options[session.plugin->name] = c->options;
      if (!c->method.empty()) o.format.plugin = std::string(session.plugin->name) + ":" + c->method;
      if (!read_model_config(*Checkpoint::open(model)).rope.freq_divisors.empty()) {
        notes.push_back(c->name + ": not compared: its rotary divisors (rope_freqs.weight) have no place in the reference's config.json");
        continue;
      }
      EngineOptions f32 = options_of(s, write_reference(o, reference), {});
      f32.exact = f32.format.exact = true;
      compare(o, f32, c->name, c->made_up() ? 0.2 : 1e-2, notes);
    }
  } catch (const Error& e) {
    fail("%s", e.what());
  }
}

}  // namespace

const std::vector<Check> end_to_end_checks{
    {"QEP-951", "end to end", "a whole model answers as its dequantized weights do in float32", whole_model, false, 240, true},
};

}  // namespace qengine::conformance
