#include "apps/qengine/step_bytes.hpp"

#include <algorithm>
#include <map>
#include <string>

namespace qengine {

std::uint64_t weight_bytes_per_step(const Engine& engine) {
  std::map<std::string, std::uint64_t> stored;  // by module
  std::uint64_t rest = 0;
  for (const Tensor& t : engine.checkpoint().tensors()) {
    const auto dot = t.name.rfind('.');
    stored[dot == std::string::npos ? t.name : t.name.substr(0, dot)] += t.bytes;
  }
  std::map<std::string, std::uint64_t> held;
  for (const LayerReport& r : engine.format().report()) held[r.name] += r.bytes;
  std::uint64_t total = 0;
  bool embed = false;
  for (const LayerSpec& layer : engine.format().layers())
    for (const PartSpec& p : layer.parts) embed |= p.role == QE_ROLE_EMBED;
  for (const LayerSpec& layer : engine.format().layers()) {
    const bool whole = held.count(layer.name);  // else its parts are held one by one
    std::uint64_t from_file = 0, in_memory = whole ? held[layer.name] : 0;
    bool lookup_only = false;
    for (const PartSpec& p : layer.parts) {
      std::string module = p.name;
      // A tied head is the embedding, under whichever name the file has it.
      if (p.role == QE_ROLE_LM_HEAD && !embed && !stored.count(module)) module = "model.embed_tokens";
      if (const auto it = stored.find(module); it != stored.end()) {
        from_file += it->second;
        stored.erase(it);
      }
      if (!whole && held.count(p.name)) in_memory += held[p.name];
      lookup_only |= p.role == QE_ROLE_EMBED;
    }
    if (lookup_only) continue;
    total += from_file == 0 ? in_memory : in_memory == 0 ? from_file : std::min(from_file, in_memory);
  }
  for (const auto& [module, bytes] : stored)  // norms; a second copy of a tied matrix is not read
    if (module != "model.embed_tokens" && module != "lm_head") rest += bytes;
  return total + rest;
}

double kv_bytes_per_token(const Engine& engine) {
  const Json kv = engine.kv_report();
  return kv.contains("bytes_per_token") ? kv["bytes_per_token"].get<double>() : 0;
}

}  // namespace qengine
