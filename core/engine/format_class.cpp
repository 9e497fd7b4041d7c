#include "core/engine/format_class.hpp"

namespace qengine {

FormatClass format_class(const Engine& engine) {
  FormatClass c;
  double bytes = 0, weights = 0;
  for (const LayerReport& r : engine.format().report())
    if (r.index >= 0) bytes += static_cast<double>(r.bytes);
  for (const LayerSpec& l : engine.format().layers())
    for (const PartSpec& p : l.parts) {
      c.parameters += p.n * l.k;
      if (l.index >= 0) weights += static_cast<double>(p.n) * static_cast<double>(l.k);
    }
  if (weights > 0) c.weight_bits = 8 * bytes / weights;
  const Json kv = engine.kv_report();
  const double values = 2.0 * engine.config().num_layers * static_cast<double>(engine.config().kv_size());
  if (values > 0 && kv.contains("bytes_per_token")) c.kv_bits = 8 * kv["bytes_per_token"].get<double>() / values;
  return c;
}

}  // namespace qengine
