// A layer of parts as a plugin is shown it, with the memory that it points to.
#pragma once

#include <qe/plugin.h>

#include <cstdint>
#include <string>
#include <vector>

namespace qe_test {

struct LayerView {
  std::vector<std::string> names;
  std::vector<qe_part> parts;
  std::vector<const qe_part*> pointers;
  qe_layer layer{};
  // ns: rows of each part. flags: QE_LAYER_*
  LayerView(const std::vector<std::int64_t>& ns, std::int64_t k, std::int64_t m_max, int flags = 0) : names(ns.size()) {
    for (std::size_t i = 0; i < ns.size(); ++i) names[i] = "part" + std::to_string(i);
    for (std::size_t i = 0; i < ns.size(); ++i) {
      qe_part p{};
      p.struct_size = sizeof p;
      p.name = {names[i].data(), names[i].size()};
      p.n = p.n_end = ns[i];
      parts.push_back(p);
    }
    for (const auto& p : parts) pointers.push_back(&p);
    layer.struct_size = sizeof layer;
    layer.n_parts = std::uint32_t(parts.size());
    layer.parts = pointers.data();
    layer.flags = flags;
    layer.k = layer.k_end = k;
    layer.m_max = m_max;
    layer.tp_size = 1;
  }
  LayerView(const LayerView&) = delete;
};

}  // namespace qe_test
