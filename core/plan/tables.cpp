#include "core/plan/tables.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <sstream>
#include <toml++/toml.h>

#include "core/base/error.hpp"
#include "core/base/nearest.hpp"

namespace qengine {

extern const char* const kShapesToml;
extern const char* const kDevicesToml;
extern const char* const kFormatsToml;

namespace {

// The tables are part of the program: a mistake in them is ours.
toml::table parsed(const char* text, const char* name) {
  try {
    return toml::parse(text, std::string_view(name));
  } catch (const toml::parse_error& e) {
    throw Error("E000", std::string(name) + ":" + std::to_string(e.source().begin.line) + ": " + std::string(e.description()));
  }
}

std::string text(const toml::table& t, const char* key) { return t[key].value_or(std::string()); }
std::int64_t integer(const toml::table& t, const char* key, std::int64_t otherwise = 0) { return t[key].value_or(otherwise); }

std::string json(const toml::table& t) {
  std::ostringstream out;
  out << toml::json_formatter(t);
  return out.str();
}

std::vector<KnownShape> read_shapes() {
  std::vector<KnownShape> out;
  const toml::table file = parsed(kShapesToml, "config/shapes.toml");
  for (const auto& [name, node] : *file["shape"].as_table()) {
    const toml::table& t = *node.as_table();
    Shape s;
    s.name = std::string(name.str());
    s.hidden = integer(t, "hidden_size");
    s.intermediate = integer(t, "intermediate_size");
    s.layers = integer(t, "num_hidden_layers");
    s.heads = integer(t, "num_attention_heads");
    s.kv_heads = integer(t, "num_key_value_heads");
    s.head_dim = integer(t, "head_dim");
    s.vocab = integer(t, "vocab_size");
    s.max_position = integer(t, "max_position_embeddings");
    s.tied = t["tie_word_embeddings"].value_or(false);
    s.experts = integer(t, "num_experts");
    s.experts_used = integer(t, "num_experts_per_tok");
    s.expert_intermediate = integer(t, "moe_intermediate_size");
    const std::string type = text(t, "model_type");
    s.qk_norm = type.starts_with("qwen3");
    s.q_bias = s.k_bias = s.v_bias = type == "qwen2";
    out.push_back({std::move(s), json(t)});
  }
  std::ranges::sort(out, {}, [](const KnownShape& k) { return std::pair(k.shape.params(), k.shape.name); });
  return out;
}

// 23.56 GiB, in hundredths of GiB as the table is kept.
std::int64_t gib(double value) { return static_cast<std::int64_t>(static_cast<__int128>(std::llround(value * 100)) * (1ll << 30) / 100); }

std::vector<Card> read_cards() {
  std::vector<Card> out;
  const toml::table file = parsed(kDevicesToml, "config/devices.toml");
  for (const auto& [name, node] : *file["card"].as_table()) {
    const toml::table& t = *node.as_table();
    out.push_back({std::string(name.str()), text(t, "label"), static_cast<std::int32_t>(integer(t, "sm")), gib(t["memory_gib"].value_or(0.0)),
                   integer(t, "bandwidth_gb_s") * 1'000'000'000, integer(t, "bf16_tflops") * 1'000'000'000'000, t["fp8"].value_or(false), t["fp4"].value_or(false)});
  }
  std::ranges::sort(out, {}, [](const Card& c) { return std::tuple(c.memory_bytes, c.bandwidth, c.name); });
  return out;
}

std::vector<WeightFormat> read_formats() {
  std::vector<WeightFormat> out;
  const toml::table file = parsed(kFormatsToml, "config/formats.toml");
  for (const auto& node : *file["format"].as_array()) {
    const toml::table& t = *node.as_table();
    WeightFormat f{.name = text(t, "name"), .label = text(t, "label"), .bits = integer(t, "bits"), .group = integer(t, "group"), .group_rows = integer(t, "group_rows", 1),
                   .group_bits = integer(t, "group_bits"), .nested = integer(t, "nested"), .row_bytes = integer(t, "row_bytes"), .matrix_bytes = integer(t, "matrix_bytes"),
                   .flat = t["flat"].value_or(false), .gguf = t["gguf"].value_or(false), .math = text(t, "math"), .quantization = text(t, "quantization")};
    if (const toml::array* aliases = t["aliases"].as_array())
      for (const auto& a : *aliases) f.aliases.push_back(a.value_or(std::string()));
    if (const toml::table* fills = t["fill"].as_table())
      for (const auto& [tensor, value] : *fills) {
        const toml::table& fill = *value.as_table();
        f.fills.push_back({std::string(tensor.str()), static_cast<std::uint32_t>(integer(fill, "code")), static_cast<int>(integer(fill, "bits", 8))});
      }
    if (const toml::table* quant = t["quant"].as_table()) f.quant_config_json = json(*quant);
    out.push_back(std::move(f));
  }
  return out;
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

[[noreturn]] void unknown(const char* what, std::string_view name, const std::vector<std::string>& names) {
  Error error("E101", "no " + std::string(what) + " is called \"" + std::string(name.substr(0, 60)) + "\"");
  const std::string near = nearest(std::string(name), names);
  std::string all;
  for (const std::string& n : names) all += (all.empty() ? "" : " ") + n;
  error.from("known: " + all);
  if (!near.empty()) error.hint("did you mean " + near + "?");
  throw error;
}

// "8188MiB", "80GB", "256GB/s", "3.35TB/s" -> bytes. `decimal`: what a bare number counts in.
std::optional<std::int64_t> quantity(std::string_view text) {
  double value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc() || !(value > 0)) return std::nullopt;
  std::string unit = lower({end, static_cast<std::size_t>(text.data() + text.size() - end)});
  if (unit.ends_with("/s")) unit.resize(unit.size() - 2);
  double factor = 0;
  for (const auto& [name, f] : {std::pair("", 1.0), {"b", 1.0}, {"kb", 1e3}, {"mb", 1e6}, {"gb", 1e9}, {"tb", 1e12}, {"kib", 0x1p10}, {"mib", 0x1p20}, {"gib", 0x1p30}, {"tib", 0x1p40}})
    if (unit == name) factor = f;
  if (factor == 0 || value * factor > 1e17 || value * factor < 1) return std::nullopt;
  return static_cast<std::int64_t>(std::llround(value * factor));
}

[[noreturn]] void bad_card(const std::string& part, const char* expected) {
  throw Error("E101", "--device " + part + ": expected " + expected).hint("for example --device sm=89,mem=8188MiB,bw=256GB/s, or a name such as h200");
}

}  // namespace

std::span<const KnownShape> known_shapes() {
  static const std::vector<KnownShape> shapes = read_shapes();
  return shapes;
}

std::span<const Card> known_cards() {
  static const std::vector<Card> cards = read_cards();
  return cards;
}

std::span<const WeightFormat> known_formats() {
  static const std::vector<WeightFormat> formats = read_formats();
  return formats;
}

const KnownShape& shape_named(std::string_view name) {
  std::vector<std::string> names;
  for (const KnownShape& s : known_shapes()) {
    if (s.shape.name == lower(name)) return s;
    names.push_back(s.shape.name);
  }
  unknown("shape", name, names);
}

const Card& card_named(std::string_view name) {
  std::vector<std::string> names;
  for (const Card& c : known_cards()) {
    if (c.name == lower(name)) return c;
    names.push_back(c.name);
  }
  unknown("card", name, names);
}

const WeightFormat* find_format(std::string_view name) {
  for (const WeightFormat& f : known_formats()) {
    if (lower(f.name) == lower(name)) return &f;
    for (const std::string& a : f.aliases)
      if (a == lower(name)) return &f;
  }
  return nullptr;
}

const WeightFormat& format_named(std::string_view name) {
  if (const WeightFormat* f = find_format(name)) return *f;
  std::vector<std::string> names;
  for (const WeightFormat& f : known_formats()) names.push_back(f.name);
  unknown("format", name, names);
}

std::vector<Card> parse_cards(std::string_view text) {
  std::vector<Card> out;
  std::set<std::string> seen;  // keys of the card being described
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t comma = std::min(text.find(',', begin), text.size());
    const std::string part(text.substr(begin, comma - begin));
    begin = comma + 1;
    const std::size_t equals = part.find('=');
    if (part.empty()) bad_card(std::string(text.substr(0, 60)), "names between the commas");
    if (equals == part.npos) {
      out.push_back(card_named(part));
      seen.clear();
      continue;
    }
    const std::string key = lower(part.substr(0, equals)), value = part.substr(equals + 1);
    if (seen.empty() || seen.count(key)) {
      seen.clear();
      out.push_back({.name = "custom"});
    }
    seen.insert(key);
    Card& c = out.back();
    if (key == "sm") {
      const auto [end, ec] = std::from_chars(value.data(), value.data() + value.size(), c.sm);
      if (ec != std::errc() || end != value.data() + value.size() || c.sm < 10 || c.sm > 999) bad_card(part, "a compute capability without the point, such as sm=89");
      c.fp8 = c.sm >= 89;
      c.fp4 = c.sm >= 100;
    } else if (key == "mem") {
      const auto q = quantity(value);
      if (!q) bad_card(part, "a size such as mem=8188MiB");
      c.memory_bytes = *q;
    } else if (key == "bw") {
      const auto q = quantity(value);
      if (!q) bad_card(part, "a rate such as bw=256GB/s");
      c.bandwidth = *q;
    } else if (key == "tflops") {
      double t = 0;
      const auto [end, ec] = std::from_chars(value.data(), value.data() + value.size(), t);
      if (ec != std::errc() || end != value.data() + value.size() || !(t > 0 && t < 1e6)) bad_card(part, "a rate such as tflops=165");
      c.bf16_flops = static_cast<std::int64_t>(t * 1e12);
    } else if (key == "fp8" || key == "fp4") {
      if (value != "yes" && value != "no") bad_card(part, "yes or no");
      (key == "fp8" ? c.fp8 : c.fp4) = value == "yes";
    } else if (key == "name") {
      c.name = value;
    } else {
      bad_card(part, "sm, mem, bw, tflops, fp8, fp4 or name before the =");
    }
  }
  for (Card& c : out) {
    if (c.label.empty()) c.label = c.name;
    if (c.memory_bytes == 0) bad_card(std::string(text.substr(0, 60)), "mem= for a card of its own");
    if (c.bandwidth == 0) bad_card(std::string(text.substr(0, 60)), "bw= for a card of its own");
  }
  return out;
}

}  // namespace qengine
