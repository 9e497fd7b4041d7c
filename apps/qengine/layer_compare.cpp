#include "apps/qengine/layer_compare.hpp"

#include <algorithm>
#include <cstdio>

#include "core/engine/run_observer.hpp"

namespace qengine {
namespace {

// Enough for a mean that stands still; one piece's hidden states of every layer wait in memory.
constexpr std::int64_t kTokens = 2048, kPiece = 256;

class Keep final : public RunObserver {
 public:
  void after_layer(int layer, const float* x, std::int64_t rows, std::int64_t hidden) override {
    if (layers.size() <= static_cast<std::size_t>(layer)) layers.resize(static_cast<std::size_t>(layer) + 1);
    auto& to = layers[static_cast<std::size_t>(layer)];
    to.insert(to.end(), x, x + rows * hidden);
  }
  std::vector<std::vector<float>> layers;  // [tokens * hidden]
};

class Compare final : public RunObserver {
 public:
  Compare(const std::vector<std::vector<float>>& base, LayerErrors& errors) : base_(base), errors_(errors), row_(base.size()) {}
  void after_layer(int layer, const float* x, std::int64_t rows, std::int64_t hidden) override {
    const auto l = static_cast<std::size_t>(layer), h = static_cast<std::size_t>(hidden);
    for (std::int64_t r = 0; r < rows; ++r, ++row_[l]) errors_.add(layer, std::span(base_[l]).subspan(row_[l] * h, h), {x + r * hidden, h});
  }

 private:
  const std::vector<std::vector<float>>& base_;
  LayerErrors& errors_;
  std::vector<std::size_t> row_;  // of each layer, where the next chunk begins
};

}  // namespace

LayerErrors compare_layers(const Invocation& in, Engine& base, Engine& model, const std::vector<Window>& windows) {
  const ModelConfig &a = base.config(), &b = model.config();
  if (a.num_layers != b.num_layers || a.hidden_size != b.hidden_size)
    throw Error("E101", "--layers compares layer by layer; --reference has " + std::to_string(a.num_layers) + " of width " + std::to_string(a.hidden_size) + ", --model " + std::to_string(b.num_layers) + " of width " + std::to_string(b.hidden_size));
  LayerErrors errors(b.num_layers);
  Progress progress(in, "layers");
  std::int64_t done = 0;
  for (const Window& w : windows) {
    for (std::int64_t first = 0; first < std::ssize(w.ids) && done < kTokens && !GracefulStop::requested(); first += kPiece) {
      const std::int64_t n = std::min(kPiece, std::ssize(w.ids) - first);
      const std::span<const std::int32_t> ids(w.ids.data() + first, static_cast<std::size_t>(n));
      Keep keep;
      base.observe(ids, keep);
      Compare compare(keep.layers, errors);
      model.observe(ids, compare);
      done += n;
      progress.at(std::min(1.0, static_cast<double>(done) / static_cast<double>(kTokens)));
    }
  }
  return errors;
}

Json layer_errors_json(const LayerErrors& errors) {
  Json out = Json::array();
  for (int l = 0; l < errors.layers(); ++l) {
    const LayerError e = errors.of(l);
    out.push_back({{"layer", l}, {"relative_error", e.relative_error}, {"cosine", e.cosine}, {"sqnr_db", e.sqnr_db}});
  }
  return out;
}

std::string layer_errors_text(const LayerErrors& errors) {
  std::string out = "layer  relative error      cosine  SQNR dB   (residual stream behind the layer)\n";
  char line[128];
  for (int l = 0; l < errors.layers(); ++l) {
    const LayerError e = errors.of(l);
    std::snprintf(line, sizeof line, "%5d  %14.6f  %10.7f  %7.1f\n", l, e.relative_error, e.cosine, e.sqnr_db);
    out += line;
  }
  return out;
}

}  // namespace qengine
