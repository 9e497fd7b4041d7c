#include "core/model/quant_config.hpp"

#include <algorithm>
#include <string_view>

#include "core/base/error.hpp"
#include "core/model/json_text.hpp"
#include "core/model/text.hpp"

namespace qengine {
namespace {

bool has_tensor_ending(std::span<const Tensor> tensors, std::string_view end) {
  return std::any_of(tensors.begin(), tensors.end(), [&](const Tensor& t) { return t.name.ends_with(end); });
}

std::string lower(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

// "METHOD (PLUGIN)".
std::string whose(const QuantDialect& d) { return d.quant_method + " (" + d.owner + ")"; }

bool fits(const QuantDialect& d, const Json& config, std::span<const Tensor> tensors) {
  if (!d.key.empty()) return config.contains(d.key);
  return !d.tensors.empty() && std::all_of(d.tensors.begin(), d.tensors.end(), [&](const std::string& end) { return has_tensor_ending(tensors, end); });
}

// `found` is the dialect whose file or key held the object, null for quantization_config itself.
void name_method(QuantConfig& quant, const QuantDialect* found, std::span<const Tensor> tensors, std::span<const QuantDialect> dialects) {
  Json& config = quant.config;
  for (const char* key : {"quant_method", "method"}) {
    const auto it = config.find(key);
    if (it == config.end() || it->is_null()) continue;
    if (!it->is_string() || it->get_ref<const std::string&>().empty())
      throw Error("E211", std::string(key) + " is " + printable(it->dump(), 80) + ", expected a name")
          .in(quant.source)
          .hint("the config was edited by hand or made by an unknown tool");
    const std::string method = lower(it->get<std::string>());
    config["quant_method"] = method;
    return;
  }
  if (found && !found->quant_method.empty()) {
    config["quant_method"] = found->quant_method;
    return;
  }
  // Keys tell more than tensors do.
  for (const bool by_key : {true, false}) {
    const QuantDialect* is = nullptr;
    for (const QuantDialect& d : dialects) {
      if (d.key.empty() == by_key || !fits(d, config, tensors)) continue;
      if (is && is->quant_method != d.quant_method)
        throw Error("E211", "quant_method is missing, and the object could be " + whose(*is) + " or " + whose(d))
            .in(quant.source)
            .from(by_key ? "its keys " + is->key + " and " + d.key : std::string("the names of the tensors"))
            .hint("add quant_method");
      is = &d;
    }
    if (!is) continue;
    config["quant_method"] = is->quant_method;
    return;
  }
  throw Error("E211", "quant_method is missing and no other key tells the quantization method")
      .in(quant.source)
      .hint("add quant_method, or remove the whole object if the model is not quantized");
}

// Tensors that only a quantization method has, and no config at all that says with which numbers to read them.
void need_config(const Json& config, std::span<const Tensor> tensors, std::span<const QuantDialect> dialects) {
  for (const QuantDialect& d : dialects) {
    if (!d.key.empty() || !fits(d, config, tensors)) continue;
    std::string names;
    for (const std::string& end : d.tensors) names += (names.empty() ? "" : ", ") + end;
    throw Error("E211", "quantization_config is missing")
        .from("tensors that end in " + names + " are of " + whose(d))
        .in("config.json")
        .hint("fetch the config that belongs to these weights: it says with which numbers they are read");
  }
}

bool take(const Json& parent, const std::string& key, const std::string& source, QuantConfig& out) {
  const auto it = parent.find(key);
  if (it == parent.end() || it->is_null()) return false;
  if (!it->is_object()) throw Error("E211", key + " is " + it->type_name() + ", expected an object").in(source);
  out = {*it, source};
  // Some writers put the object into another of its own name, with more keys beside it.
  const Json inner = out.config.value("quantization_config", Json());
  if (!inner.is_object()) return true;
  out.config.erase("quantization_config");
  for (const auto& [name, value] : inner.items()) out.config[name] = value;
  return true;
}

}  // namespace

QuantConfig find_quant_config(const Json& config, const std::filesystem::path& folder, std::span<const Tensor> tensors, std::span<const QuantDialect> dialects) {
  namespace fs = std::filesystem;
  QuantConfig out;
  const auto text = config.find("text_config");
  if (take(config, "quantization_config", "config.json quantization_config", out) ||
      (text != config.end() && text->is_object() && take(*text, "quantization_config", "config.json text_config.quantization_config", out))) {
    name_method(out, nullptr, tensors, dialects);
    return out;
  }

  // Other places, as plugins know them. Two that disagree are no choice of ours.
  for (const QuantDialect& d : dialects) {
    if (d.file.empty()) continue;
    QuantConfig here;
    if (d.file == "config.json") {
      if (!take(config, d.at, "config.json " + d.at, here)) continue;
    } else {
      std::error_code ignored;
      if (folder.empty() || out.source == d.file || !fs::exists(folder / d.file, ignored)) continue;
      Json whole = read_json_object(folder / d.file);
      const auto inner = d.at.empty() ? whole.end() : whole.find(d.at);
      here = {inner != whole.end() && inner->is_object() ? *inner : whole, d.file};
    }
    name_method(here, &d, tensors, dialects);
    if (out.config.is_null()) out = std::move(here);
    else if (out.config["quant_method"] != here.config["quant_method"])
      throw Error("E211", out.source + " says " + out.config["quant_method"].get<std::string>() + ", " + here.source + " says " + here.config["quant_method"].get<std::string>())
          .hint("remove the file that does not belong to this model");
  }
  if (out.config.is_null()) need_config(config, tensors, dialects);
  return out;
}

}  // namespace qengine
