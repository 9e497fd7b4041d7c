// What the checkpoint's tensors say about the layers, and that nothing of them is left over.
#include "core/plugin_host/format_planner.hpp"

#include <cstring>

namespace qengine {

std::vector<std::string> FormatPlanner::tensors_of(const std::string& module) const {
  std::vector<std::string> out;
  const std::string prefix = module + ".";
  for (auto it = names_.lower_bound(prefix); it != names_.end() && it->starts_with(prefix); ++it) out.push_back(*it);
  return out;
}

bool FormatPlanner::equal(const Tensor& a, const Tensor& b) const {
  if (a.dtype != b.dtype || a.shape != b.shape || a.bytes != b.bytes) return false;
  const auto x = s_.checkpoint->data(a), y = s_.checkpoint->data(b);
  const bool same = std::memcmp(x.data(), y.data(), x.size()) == 0;
  s_.checkpoint->release(a);
  s_.checkpoint->release(b);
  return same;
}

void FormatPlanner::prepare_layers() {
  s_.layers = layer_specs(s_.config);
  const auto own_table = [&] {  // lookups and head are two matrices
    const LayerSpec& head = s_.layers.back();
    LayerSpec table{"model.embed_tokens", -1, head.k, {{QE_ROLE_EMBED, "model.embed_tokens", head.parts[0].n, false}}};
    s_.layers.insert(s_.layers.end() - 1, std::move(table));
  };
  const bool new_head = s_.config.tied && !s_.options.quantize_lm_head.empty();  // made from the table, which stays as it is
  if (!s_.has_tensors()) {
    if (new_head) own_table();
    return;
  }
  const Checkpoint& c = *s_.checkpoint;

  if (s_.config.tied) {
    const std::string embed = "model.embed_tokens";
    bool own_head = false;
    for (const std::string& t : tensors_of("lm_head")) own_head |= t != "lm_head.weight" && t != "lm_head.bias";
    const Tensor* copy = c.find("lm_head.weight");
    if (new_head && !own_head && !tensors_of(embed).empty()) own_table();
    if (tensors_of(embed).empty() && (copy || own_head)) {
      s_.layers.back().parts[0].name = "lm_head";
    } else if (own_head) {  // tied in the unquantized model; here the head has codes and scales of its own
      s_.layers.back().parts[0].name = "lm_head";
      own_table();
    } else if (copy) {
      ledger_.used.insert(copy->name);
      const Tensor* table = c.find(embed + ".weight");
      if (table && equal(*table, *copy)) {
        ignored.push_back(copy->name + " (equal to " + embed + ".weight, tied)");
      } else {
        ignored.push_back(copy->name + " (tied: " + embed + ".weight is used)");
        warnings.push_back("W204 " + copy->name + " differs from " + embed + ".weight and is not used: tie_word_embeddings is true");
      }
    }
  }

  find_stored_together();
  find_padded_vocabulary();
  for (LayerSpec& layer : s_.layers)
    for (PartSpec& part : layer.parts) {
      const std::string name = part.module() + ".bias";
      if (part.role == QE_ROLE_EMBED || part.role == QE_ROLE_LM_HEAD) continue;
      if (!part.bias && c.find(name)) part.bias = true;  // some quantizers write one, of zeros
      if (!part.bias) continue;
      need_dense(name, part.stored.empty() ? part.n : part.stored_n);
      if (part.stored.empty()) s_.bias_roles.emplace(name, part.role);
      else s_.biases_inside.emplace(part.name + ".bias", PlanState::Inside{name, part.stored_n, part.first});
    }
  for (int i = 0; i < s_.config.num_layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    need_dense(layer + "input_layernorm.weight", s_.config.hidden_size);
    need_dense(layer + "post_attention_layernorm.weight", s_.config.hidden_size);
    if (!s_.config.qk_norm) continue;
    need_dense(layer + "self_attn.q_norm.weight", s_.config.head_dim);
    need_dense(layer + "self_attn.k_norm.weight", s_.config.head_dim);
  }
  need_dense("model.norm.weight", s_.config.hidden_size);
}

// Parts that the checkpoint holds as one module under the layer's own name, one after the other.
void FormatPlanner::find_stored_together() {
  if (s_.checkpoint->rotary_rows_interleaved()) return;  // such rows are put in order by the module they are in
  for (LayerSpec& layer : s_.layers) {
    if (layer.parts.size() < 2 || tensors_of(layer.name).empty()) continue;
    if (std::ranges::any_of(layer.parts, [&](const PartSpec& p) { return !tensors_of(p.name).empty(); })) continue;
    std::int64_t all = 0;
    for (const PartSpec& p : layer.parts) all += p.n;
    std::int64_t first = 0;
    for (PartSpec& p : layer.parts) {
      p.stored = layer.name, p.stored_n = all, p.first = first;
      first += p.n;
    }
  }
}

// Embeddings and heads with rows beyond the vocabulary, which make sizes round.
void FormatPlanner::find_padded_vocabulary() {
  for (LayerSpec& layer : s_.layers)
    for (PartSpec& part : layer.parts) {
      if (part.role != QE_ROLE_EMBED && part.role != QE_ROLE_LM_HEAD) continue;
      for (const char* suffix : {".weight", ".weight_packed"}) {
        const Tensor* t = s_.checkpoint->find(part.name + suffix);
        // Rows of codes hold at least an element of a byte for 16 inputs; other shapes are not one row a token.
        if (!t || t->shape.size() != 2 || t->shape[0] <= part.n || t->shape[1] > layer.k || t->shape[1] * 16 < layer.k) continue;
        part.stored = part.name, part.stored_n = t->shape[0];
        warnings.push_back("W206 " + t->name + " has " + std::to_string(t->shape[0]) + " rows and vocab_size is " + std::to_string(part.n) + ": the first " + std::to_string(part.n) + " are used");
      }
    }
}

Error FormatPlanner::missing_tensor(const std::string& name, const std::string& from) const {
  return Error("E202", "missing tensor " + s_.spelled(name)).from(from).hint("the download may be incomplete, or config.json belongs to another model");
}

void FormatPlanner::check_dense(const std::string& name, std::int64_t n) const {
  const Tensor* t = s_.checkpoint->find(name);
  if (!t) throw missing_tensor(name, s_.config.architecture + " needs it");
  const std::uint64_t floats = 1ull << QE_F32 | 1ull << QE_F16 | 1ull << QE_BF16;
  const std::uint64_t blocks = 1ull << (QE_GGML + 0) | 1ull << (QE_GGML + 1) | 1ull << (QE_GGML + 30);  // the same three
  Want w{name, true, 1, floats | blocks, {n, -1, -1, -1}};
  if (t->dtype < 64 && (w.dtypes >> t->dtype & 1)) w.dtypes = 0;
  else w.dtypes = floats;
  const std::string what = mismatch(*t, w);
  if (what.empty()) return;
  throw Error("E204", s_.spelled(name) + " " + what).in(s_.file_of(*t)).from(s_.config.architecture).hint("config.json and the tensors do not belong together");
}

void FormatPlanner::settle_ledger() {
  if (!s_.has_tensors()) return;
  for (const auto& [name, n] : dense_) {
    check_dense(name, n);
    ledger_.used.insert(name);
    ledger_.expected.insert(name);
  }
  for (const auto& layer : s_.units)
    for (const Unit& u : layer)
      for (const Want& w : u.wants) {
        ledger_.used.insert(w.name);
        ledger_.expected.insert(w.name);
        const auto dot = w.name.rfind('.');
        if (dot != std::string::npos && w.name.substr(dot) != ".weight" && s_.checkpoint->find(w.name)) ledger_.quantized.insert(w.name.substr(0, dot));
      }
  // What a plugin for the KV cache looks at while it plans belongs to the cache.
  for (auto& entry : s_.models) {
    const Plugin* p = entry.first;
    PluginModel* m = entry.second.get();
    if (!p->kv) continue;
    m->ckpt.record = true;
    qe_kv_plan plan{};
    plan.struct_size = sizeof plan;
    qe_error error{};
    ask(*p, "plan", "kv cache", [&] { return p->kv->plan(&s_.options.device, &m->model, 16, &plan, &error); });
    m->ckpt.record = false;
    ledger_.used.insert(m->ckpt.found.begin(), m->ckpt.found.end());
    ledger_.expected.insert(m->ckpt.found.begin(), m->ckpt.found.end());
    ledger_.expected.insert(m->ckpt.missed.begin(), m->ckpt.missed.end());
    m->ckpt.found.clear();
    m->ckpt.missed.clear();
  }
  Ledger::Result r = ledger_.close(*s_.checkpoint, s_.options.ignore_tensors);
  ignored.insert(ignored.end(), r.ignored.begin(), r.ignored.end());
  if (!r.left_over.empty())
    warnings.push_back("W203 " + std::to_string(r.left_over.size()) + (r.left_over.size() == 1 ? " tensor is" : " tensors are") + " used by nothing: " + join(r.left_over, ", ", 16));
  for (const std::string& rule : r.unused_rules) {
    unused.push_back(rule);
    warnings.push_back("W205 rule \"" + rule + "\" in --ignore-tensor matches no tensor");
  }
}

}  // namespace qengine
