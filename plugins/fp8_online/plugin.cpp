// fp8_online: 8- and 4-bit formats made while loading an unquantized checkpoint. Only when asked for by name.
#include <qe/stream_linear.hpp>

#include <string_view>

#include "format.hpp"

namespace qengine::online {

struct Plugin : qe::Linears<Plugin, PerTensor, PerChannel, PerBlock, MxFp8, MxFp4, Int8> {
  static constexpr qe::Row kRows[] = {{QE_CPU, 0, 0, 1}, {QE_CUDA, 80, 0, 2}};
  static constexpr qe::Method kMethods[] = {
      {"fp8_per_tensor", "none", "E4M3, one scale a matrix"},
      {"fp8_per_channel", "none", "E4M3, one scale a row"},
      {"fp8_per_block", "none", "E4M3, one scale a block of 128 x 128"},
      {"mxfp8", "none", "E4M3 with a power of two per 32 inputs"},
      {"mxfp4", "none", "E2M1 with a power of two per 32 inputs"},
      {"int8_per_channel_weight_only", "none", "int8, one scale a row"},
      {"lm_head_fp8", "none", "fp8_per_channel for the head alone (--quantize-lm-head fp8)"},
      {"lm_head_int8", "none", "int8 for the head alone (--quantize-lm-head int8)"}};
  static constexpr const char* kOptions[] = {"ignore"};  // names that stay as they are: exact, glob or re:
  static constexpr qe_alias kAliases[] = {
      {sizeof(qe_alias), 2, "fp8", "none", "fp8_online:fp8_per_tensor", "0.1.0", "", "or fp8_online:fp8_per_channel for less error"},
      {sizeof(qe_alias), 2, "fp8_per_tensor", "none", "fp8_online:fp8_per_tensor", "", "", ""},
      {sizeof(qe_alias), 2, "fp8_per_channel", "none", "fp8_online:fp8_per_channel", "", "", ""},
      {sizeof(qe_alias), 2, "fp8_per_block", "none", "fp8_online:fp8_per_block", "", "", ""},
      {sizeof(qe_alias), 2, "mxfp8", "none", "fp8_online:mxfp8", "", "", ""},
      {sizeof(qe_alias), 2, "mxfp4", "none", "fp8_online:mxfp4", "", "", ""},
      {sizeof(qe_alias), 2, "int8_per_channel_weight_only", "none", "fp8_online:int8_per_channel_weight_only", "", "", ""},
      {sizeof(qe_alias), 4, "quantize-lm-head=fp8", "", "fp8_online:lm_head_fp8", "", "", ""},
      {sizeof(qe_alias), 4, "quantize-lm-head=int8", "", "fp8_online:lm_head_int8", "", "", ""}};

  static int detect(const qe_model& m, qe::Reason& why) {
    const std::string method = qe::Config(m.cfg).str("quant_method");
    if (!method.empty() && method != "none") return why("quant_method is %s; this plugin quantizes checkpoints that are not quantized", method.c_str()), 0;
    return why("the checkpoint is not quantized; this plugin is used when it is asked for by name"), 300;
  }

  static std::string_view method_of(const qe_layer& l) { return l.method && *l.method ? std::string_view(l.method) : std::string_view("fp8_per_channel"); }

  static int pick(const qe_model& m, const qe_layer& l, const qe_part& part, qe::Reason& why) {
    std::string_view method = method_of(l);
    if (method.starts_with("lm_head_")) {
      if (part.role != QE_ROLE_LM_HEAD) return why("scheme %.*s is for lm_head", int(method.size()), method.data()), -1;
      method = method == "lm_head_fp8" ? "fp8_per_channel" : "int8_per_channel_weight_only";
    } else if (part.role == QE_ROLE_EMBED || part.role == QE_ROLE_LM_HEAD) {
      return why(part.role == QE_ROLE_EMBED ? "embeddings stay as they are" : "lm_head stays as it is unless --quantize-lm-head asks"), -1;
    }
    if (qe::Config(m.cfg).lists("options.ignore", part.name)) return why("listed in the option ignore"), -1;
    const std::string name = std::string(qe::view(part.name)) + ".weight";
    if (const auto t = qe::Io(m, qe::Io::Mode::plan).look(name); t && t->dtype != QE_F32 && t->dtype != QE_F16 && t->dtype != QE_BF16)
      return why("%s is %s; this plugin quantizes F32, F16 and BF16", name.c_str(), qe::dtype_name(t->dtype)), -1;
    static constexpr std::string_view kSchemes[] = {"fp8_per_tensor", "fp8_per_channel", "fp8_per_block", "mxfp8", "mxfp4", "int8_per_channel_weight_only"};
    for (int i = 0; i < 6; ++i)
      if (kSchemes[i] == method) return i;
    return why("scheme %.*s is not one of this plugin's; supported: fp8_per_tensor, fp8_per_channel, fp8_per_block, mxfp8, mxfp4, int8_per_channel_weight_only", int(method.size()),
               method.data()), -1;
  }

  static std::string scheme(const qe_model&, const qe_layer& l) { return std::string(method_of(l)); }
};

}  // namespace qengine::online

QE_LINEAR_PLUGIN(qengine::online::Plugin, .id = "qengine.fp8_online", .name = "fp8_online", .version = "0.1.0", .vendor = "qengine",
                 .summary = "FP8, MX and int8 made at load from unquantized weights")
