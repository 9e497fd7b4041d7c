#include "shared/compressed_tensors_config.hpp"

#include <algorithm>
#include <charconv>

namespace qengine::packed {
namespace {

// Formats the writers know. A name outside this list is a file from another world, not a scheme we lack.
constexpr std::string_view kFormats[] = {
    "dense", "int-quantized", "float-quantized", "naive-quantized", "pack-quantized", "marlin-24", "mixed-precision",
    "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized", "sparse-bitmask", "sparse-24-bitmask"};

std::optional<QuantArgs::Strategy> strategy_named(const std::string& s) {
  using S = QuantArgs::Strategy;
  if (s == "tensor") return S::kTensor;
  if (s == "channel") return S::kChannel;
  if (s == "group") return S::kGroup;
  if (s == "block") return S::kBlock;
  if (s == "token") return S::kToken;
  if (s == "tensor_group") return S::kTensorGroup;
  if (s == "attn_head") return S::kAttnHead;
  return std::nullopt;
}

// [128, 128] or "128x128".
bool read_block(const ConfigView& view, const std::string& path, std::array<std::int64_t, 2>& block) {
  if (const auto text = view.text(path)) {
    const std::size_t x = text->find('x');
    if (x == std::string::npos) return false;
    const char *a = text->data(), *end = a + text->size();
    return std::from_chars(a, a + x, block[0]).ptr == a + x && std::from_chars(a + x + 1, end, block[1]).ptr == end;
  }
  if (view.size(path) != 2) return false;
  for (int i : {0, 1}) {
    const auto v = view.whole(path + ".#" + std::to_string(i));
    if (!v) return false;
    block[i] = *v;
  }
  return true;
}

// `problem` keeps the first thing that was not understood.
class ArgsReader {
 public:
  ArgsReader(const ConfigView& view, std::string path, std::string& problem)
      : view_(view), path_(std::move(path)), problem_(problem) {}

  QuantArgs read() {
    QuantArgs a;
    a.num_bits = static_cast<int>(integer("num_bits", 8));
    if (a.num_bits < 1 || a.num_bits > 16) complain("num_bits", std::to_string(a.num_bits), "1 to 16");
    const std::string type = text("type", "int");
    if (type != "int" && type != "float") complain("type", type, "int, float");
    a.is_float = type == "float";
    a.symmetric = view_.flag(path_ + "symmetric", true);
    a.group_size = integer("group_size", 0);
    if (a.group_size < -1) complain("group_size", std::to_string(a.group_size), "-1 and positive numbers");

    if (const std::string s = text("strategy", ""); !s.empty()) {
      if (const auto named = strategy_named(s)) {
        a.strategy = *named;
      } else {
        complain("strategy", s, "tensor, channel, group, block, token, tensor_group, attn_head");
      }
    } else if (a.group_size != 0) {
      a.strategy = a.group_size > 0 ? QuantArgs::Strategy::kGroup : QuantArgs::Strategy::kChannel;
    }
    using S = QuantArgs::Strategy;
    if ((a.strategy == S::kGroup || a.strategy == S::kTensorGroup) && a.group_size == 0)
      complain("group_size", "absent", std::string("a number, as strategy is ") + strategy_text(a.strategy));
    if (a.strategy == S::kGroup && a.group_size == -1) a.strategy = S::kChannel;
    if (a.strategy == S::kBlock && (!read_block(view_, path_ + "block_structure", a.block) || a.block[0] < 1 || a.block[1] < 1))
      complain("block_structure", "not two positive numbers", "[128, 128] and its like");

    if (const auto d = view_.text(path_ + "dynamic")) {
      if (*d != "local") complain("dynamic", *d, "false, true, local");
      a.dynamic = QuantArgs::Dynamic::kLocal;
    } else if (view_.flag(path_ + "dynamic", false)) {
      a.dynamic = QuantArgs::Dynamic::kYes;
    }
    // Old files write true for "group"; "dynamic" and "static" are later names of "group" and "weight".
    if (const auto order = view_.text(path_ + "actorder")) {
      const std::string o = lower(*order);
      if (o == "group" || o == "dynamic") {
        a.actorder = QuantArgs::Actorder::kGroup;
      } else if (o == "weight" || o == "static") {
        a.actorder = QuantArgs::Actorder::kWeight;
      } else {
        complain("actorder", *order, "group, weight, static, dynamic, null");
      }
    } else if (view_.flag(path_ + "actorder", false)) {
      a.actorder = QuantArgs::Actorder::kGroup;
    }
    a.scale_dtype = text("scale_dtype", "");
    a.zp_dtype = text("zp_dtype", "");
    return a;
  }

 private:
  void complain(const char* key, const std::string& found, const std::string& supported) {
    if (problem_.empty()) problem_ = path_ + key + " is " + found + "; supported: " + supported;
  }
  std::int64_t integer(const char* key, std::int64_t absent) {
    const std::string path = path_ + key;
    if (!view_.has(path)) return absent;
    if (const auto v = view_.whole(path)) return *v;
    complain(key, view_.shown(path), "a whole number");
    return absent;
  }
  std::string text(const char* key, const char* absent) {
    return lower(view_.text(path_ + key).value_or(absent));
  }

  const ConfigView& view_;
  std::string path_;
  std::string& problem_;
};

}  // namespace

const char* strategy_text(QuantArgs::Strategy s) {
  switch (s) {
    case QuantArgs::Strategy::kTensor: return "tensor";
    case QuantArgs::Strategy::kChannel: return "channel";
    case QuantArgs::Strategy::kGroup: return "group";
    case QuantArgs::Strategy::kBlock: return "block";
    case QuantArgs::Strategy::kToken: return "token";
    case QuantArgs::Strategy::kTensorGroup: return "tensor_group";
    case QuantArgs::Strategy::kAttnHead: return "attn_head";
  }
  return "?";
}

std::optional<CompressedTensorsGroup> preset_scheme(std::string_view name) {
  using S = QuantArgs::Strategy;
  const auto weights = [](int bits, bool is_float, S strategy, std::int64_t group = 0, bool symmetric = true) {
    QuantArgs a;
    a.num_bits = bits, a.is_float = is_float, a.strategy = strategy, a.group_size = group, a.symmetric = symmetric;
    return a;
  };
  const auto inputs = [&](int bits, bool is_float, S strategy, bool dynamic, std::int64_t group = 0) {
    QuantArgs a = weights(bits, is_float, strategy, group);
    a.dynamic = dynamic ? QuantArgs::Dynamic::kYes : QuantArgs::Dynamic::kNo;
    return a;
  };
  CompressedTensorsGroup g;
  std::string n(name);
  std::transform(n.begin(), n.end(), n.begin(), [](unsigned char c) { return std::toupper(c); });
  const auto digit = [&](std::size_t i) { return i < n.size() && n[i] >= '2' && n[i] <= '8' ? n[i] - '0' : 0; };

  if (n == "UNQUANTIZED") return g;
  if (n == "W8A8" || n == "INT8") {
    g.weights = weights(8, false, S::kChannel);
    g.input = inputs(8, false, S::kToken, true);
  } else if (n == "W4A16_ASYM") {
    g.weights = weights(4, false, S::kGroup, 128, false);
  } else if (n.size() == 5 && n[0] == 'W' && digit(1) && n.substr(2) == "A16") {
    g.weights = weights(digit(1), false, S::kGroup, 128);
  } else if (n.size() == 4 && n[0] == 'W' && digit(1) && n[2] == 'A' && (n[3] == '8' || n[3] == '4')) {
    g.weights = weights(digit(1), false, S::kGroup, 128);
    g.input = inputs(n[3] - '0', false, S::kToken, true);
  } else if (n == "W4AFP8") {
    g.weights = weights(4, false, S::kGroup, 128);
    g.input = inputs(8, true, S::kToken, true);
  } else if (n == "FP8") {
    g.weights = weights(8, true, S::kTensor);
    g.input = inputs(8, true, S::kTensor, false);
  } else if (n == "FP8_DYNAMIC") {
    g.weights = weights(8, true, S::kChannel);
    g.input = inputs(8, true, S::kToken, true);
  } else if (n == "FP8_BLOCK") {
    g.weights = weights(8, true, S::kBlock);
    g.weights->block = {128, 128};
    g.input = inputs(8, true, S::kGroup, true, 128);
  } else if (n == "NVFP4" || n == "NVFP4A16") {
    g.weights = weights(4, true, S::kTensorGroup, 16);
    if (n == "NVFP4") {
      g.input = inputs(4, true, S::kTensorGroup, false, 16);
      g.input->dynamic = QuantArgs::Dynamic::kLocal;
    }
  } else if (n == "MXFP4" || n == "MXFP4A16" || n == "MXFP8" || n == "MXFP8A16") {
    const int bits = n[4] - '0';
    g.weights = weights(bits, true, S::kGroup, 32);
    if (n.size() == 5) g.input = inputs(bits, true, S::kGroup, true, 32);
  } else {
    return std::nullopt;
  }
  return g;
}

CompressedTensorsConfig CompressedTensorsConfig::read(qe_cfg cfg) {
  const ConfigView view(cfg);
  CompressedTensorsConfig c;
  const auto complain = [&](std::string text) {
    if (c.problem.empty()) c.problem = std::move(text);
  };
  c.format = lower(view.text("format").value_or(""));
  c.status = lower(view.text("quantization_status").value_or(""));
  const auto known = [](const std::string& f) { return std::find(std::begin(kFormats), std::end(kFormats), f) != std::end(kFormats); };
  if (!c.format.empty() && !known(c.format))
    complain("format is '" + c.format + "'; known: pack-quantized, int-quantized, float-quantized, naive-quantized, mxfp4-pack-quantized, "
             "mxfp8-quantized, nvfp4-pack-quantized, mixed-precision");

  for (std::int64_t i = 0; i < view.size("config_groups"); ++i) {
    const std::string path = "config_groups.#" + std::to_string(i);
    CompressedTensorsGroup g;
    const std::string key = view.key("config_groups", i);
    std::string targets = path + ".targets";
    if (!view.has(targets) && !view.has(path + ".weights")) {
      // A preset's name with its targets as the value.
      const auto preset = preset_scheme(key);
      if (!preset) {
        complain("config_groups." + key + " has no targets and no weights, and is no preset's name");
        continue;
      }
      g = *preset;
      targets = path;
    } else {
      for (auto [field, args] : {std::pair{"weights", &g.weights}, {"input_activations", &g.input}, {"output_activations", &g.output}})
        if (view.has(path + "." + field)) *args = ArgsReader(view, path + "." + field + ".", c.problem).read();
    }
    g.name = key;
    for (std::int64_t t = 0; t < view.size(targets); ++t)
      if (auto s = view.text(targets + ".#" + std::to_string(t))) g.targets.push_back(*s);
    if (g.targets.empty()) complain("config_groups." + key + ".targets is empty");
    g.format = lower(view.text(path + ".format").value_or(""));
    if (g.format.empty()) g.format = c.format;
    if (!g.format.empty() && !known(g.format)) complain("config_groups." + key + ".format is '" + g.format + "'");
    c.groups.push_back(std::move(g));
  }
  if (c.groups.empty()) complain("config_groups is absent or empty");
  // Error texts name the group, not its place.
  for (std::size_t i = 0; i < c.groups.size() && !c.problem.empty(); ++i) {
    const std::string place = "config_groups.#" + std::to_string(i) + ".";
    if (c.problem.starts_with(place)) c.problem = "config_groups." + c.groups[i].name + "." + c.problem.substr(place.size());
  }

  for (std::int64_t i = 0; i < view.size("ignore"); ++i)
    if (auto s = view.text("ignore.#" + std::to_string(i))) c.ignore.push_back(*s);

  if (view.size("sparsity_config") > 0) {
    const std::string f = lower(view.text("sparsity_config.format").value_or("dense"));
    if (f != "dense") complain("sparsity_config.format is " + f + "; supported: dense");
  }
  // Hadamard and other rotations that must run beside the product. weight_* ones are folded into what is stored.
  for (std::int64_t i = 0; i < view.size("transform_config.config_groups"); ++i) {
    const std::string apply = "transform_config.config_groups.#" + std::to_string(i) + ".apply";
    for (std::int64_t j = 0; j < view.size(apply); ++j) {
      const std::string location = lower(view.text(apply + ".#" + std::to_string(j) + ".location").value_or("absent"));
      if (location != "weight_input" && location != "weight_output")
        complain("transform_config asks for a transform at location " + location + " while the model runs; supported: weight_input, weight_output");
    }
  }
  return c;
}

bool is_class_name(std::string_view entry) { return entry == "Linear" || entry == "Embedding" || entry == "ParallelLMHead"; }

bool names_module(const std::string& entry, std::string_view name, int role) {
  if (!is_class_name(entry)) return qe::match(entry, name);
  // A tied head goes by the name of the embedding, and is of its class.
  const bool embedding = role == QE_ROLE_EMBED || name.ends_with("embed_tokens");
  return entry == "Embedding" ? embedding : !embedding && (entry == "Linear" || role == QE_ROLE_LM_HEAD);
}

const std::string* CompressedTensorsConfig::ignored(std::string_view name, int role) const {
  for (const std::string& entry : ignore)
    if (names_module(entry, name, role)) return &entry;
  return nullptr;
}

const CompressedTensorsGroup* CompressedTensorsConfig::group_of(std::string_view name, int role) const {
  for (bool by_class : {false, true})
    for (const CompressedTensorsGroup& g : groups)
      for (const std::string& target : g.targets)
        if (is_class_name(target) == by_class && names_module(target, name, role)) return &g;
  return nullptr;
}

}  // namespace qengine::packed
