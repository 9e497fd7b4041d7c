#include "core/model/quant_config.hpp"

#include <algorithm>
#include <string_view>

#include "core/base/error.hpp"
#include "core/model/json_text.hpp"
#include "core/model/text.hpp"

namespace qengine {
namespace {

// Files beside config.json, in the order they are looked for. Writers before quantization_config
// existed used them, some without naming the method.
struct SideFile {
  const char* name;
  const char* nested;  // the object that counts lies under this key, if there
};
constexpr SideFile kSideFiles[] = {
    {"quantize_config.json", ""},
    {"quant_config.json", ""},
    {"hf_quant_config.json", "quantization"},
};

// What an object without quant_method is, by a key that only one dialect has.
struct Dialect {
  const char* key;
  const char* quant_method;
};
constexpr Dialect kDialects[] = {
    {"config_groups", "compressed-tensors"},
    {"quant_algo", "modelopt"},
    {"desc_act", "gptq"},
    {"load_in_4bit", "bitsandbytes"},
    {"_load_in_4bit", "bitsandbytes"},
    {"load_in_8bit", "bitsandbytes"},
    {"_load_in_8bit", "bitsandbytes"},
    {"w_bit", "awq"},
};

bool has_tensor_ending(std::span<const Tensor> tensors, std::string_view end) {
  return std::any_of(tensors.begin(), tensors.end(), [&](const Tensor& t) { return t.name.ends_with(end); });
}

std::string lower(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

void name_method(Json& config, const std::string& source, std::span<const Tensor> tensors) {
  for (const char* key : {"quant_method", "method"}) {
    const auto it = config.find(key);
    if (it == config.end() || it->is_null()) continue;
    if (!it->is_string() || it->get_ref<const std::string&>().empty())
      throw Error("E211", std::string(key) + " is " + printable(it->dump(), 80) + ", expected a name")
          .in(source)
          .hint("the config was edited by hand or made by an unknown tool");
    const std::string method = lower(it->get<std::string>());
    config["quant_method"] = method;
    return;
  }
  for (const auto& [key, method] : kDialects)
    if (config.contains(key)) {
      config["quant_method"] = method;
      return;
    }
  if (has_tensor_ending(tensors, ".qweight") && has_tensor_ending(tensors, ".g_idx")) {
    config["quant_method"] = "gptq";
    return;
  }
  throw Error("E211", "quant_method is missing and no other key tells the quantization method")
      .in(source)
      .hint("add quant_method, or remove the whole object if the model is not quantized");
}

}  // namespace

QuantConfig find_quant_config(const Json& config, const std::filesystem::path& folder, std::span<const Tensor> tensors) {
  namespace fs = std::filesystem;
  QuantConfig out;
  const auto take = [&](const Json& parent, const char* key, const std::string& source) {
    const auto it = parent.find(key);
    if (it == parent.end() || it->is_null()) return false;
    if (!it->is_object())
      throw Error("E211", std::string(key) + " is " + it->type_name() + ", expected an object").in(source);
    out = {*it, source};
    return true;
  };

  const auto text = config.find("text_config");
  bool found = take(config, "quantization_config", "config.json quantization_config") ||
               (text != config.end() && text->is_object() &&
                take(*text, "quantization_config", "config.json text_config.quantization_config"));
  if (!found && take(config, "compression_config", "config.json compression_config")) {
    found = true;
    if (!out.config.contains("quant_method")) out.config["quant_method"] = "compressed-tensors";
  }
  for (const auto& [name, nested] : kSideFiles) {
    std::error_code ignored;
    if (found || folder.empty() || !fs::exists(folder / name, ignored)) continue;
    Json whole = read_json_object(folder / name);
    const auto inner = *nested ? whole.find(nested) : whole.end();
    out.config = inner != whole.end() && inner->is_object() ? *inner : whole;
    out.source = name;
    found = true;
  }
  if (found) name_method(out.config, out.source, tensors);
  return out;
}

}  // namespace qengine
