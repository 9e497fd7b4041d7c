// config.json: refused with an Error, or a config whose numbers later code may divide and index by.
#include <cmath>
#include <cstdlib>

#include "core/base/error.hpp"
#include "core/model/config.hpp"
#include "core/model/json_text.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace qengine;
  try {
    Json json = parse_json({reinterpret_cast<const char*>(data), size}, "config.json");
    const auto checkpoint = Checkpoint::from_config(std::move(json));
    const Json& quant = checkpoint->quant_config();
    if (!quant.is_null() && !quant.at("quant_method").is_string()) std::abort();
    const ModelConfig m = read_model_config(*checkpoint);
    if (m.num_layers < 1 || m.num_heads < 1 || m.num_kv_heads < 1 || m.num_heads % m.num_kv_heads != 0) std::abort();
    if (m.head_dim < 2 || m.rope.rot_dim < 2 || m.rope.rot_dim > m.head_dim || m.rope.rot_dim % 2 != 0) std::abort();
    if (m.window.size() != static_cast<std::size_t>(m.num_layers) || !(m.rms_eps >= 0)) std::abort();
    float attention_factor = 0;
    for (const float f : rope_inv_freq(m, &attention_factor))
      if (!std::isfinite(f)) std::abort();
    if (!std::isfinite(attention_factor)) std::abort();
  } catch (const Error& e) {
    if (e.message().find('\n') != std::string::npos || e.message().size() > 2000) std::abort();
  }
  return 0;
}
