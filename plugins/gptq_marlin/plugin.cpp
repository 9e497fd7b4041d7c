// gptq_marlin: GPTQ weights of 2 to 8 bits from GPTQ, GPTQModel, AutoRound and the first Marlin files, and
// compressed-tensors pack-quantized ones.
#include <qe/stream_linear.hpp>

#include "formats.hpp"

namespace qengine::gptq {

struct Plugin : qe::Linears<Plugin, W2, W3, W4, W5, W6, W7, W8, W4F32, WxF32> {
  static constexpr qe::Row kRows[] = {{QE_CPU, 0, 0, 1}, {QE_CUDA, 80, 0, 2}};
  static constexpr qe::Method kMethods[] = {
      {"gptq", "gptq", "GPTQ, 2 to 8 bits, any group, act order, rules for single modules"},
      {"marlin", "marlin", "the first Marlin files: 4 bits, symmetric"},
      {"auto_round", "auto-round,intel/auto-round", "AutoRound with GPTQ packing"},
      {"pack_quantized", "compressed-tensors", "compressed-tensors pack-quantized, 2 to 8 bits"}};
  static constexpr qe_alias kAliases[] = {
      {sizeof(qe_alias), 2, "gptq", "gptq,marlin,auto-round,intel/auto-round", "gptq_marlin", "", "", ""},
      {sizeof(qe_alias), 2, "auto_gptq", "gptq,marlin,auto-round,intel/auto-round", "gptq_marlin", "", "", ""},
      {sizeof(qe_alias), 2, "marlin", "gptq", "gptq_marlin", "0.1.0", "",
       "which names the plugin; the checkpoint's own quant_method is found without the flag"}};

  static int detect(const qe_model& m, qe::Reason& why) { return gptq::detect(m, why); }

  static qe::Claim check(const qe_model& m, const qe_layer& l, qe::Reason& why) {
    qe::Claim claim = qe::Claim::native;
    for (std::uint32_t i = 0; i < l.n_parts; ++i) {
      const Module d = module(m, l, *l.parts[i]);
      if (d.storage == Module::Storage::kNone) return why("%s", d.reason.c_str()), qe::Claim::no;
      if (!d.partial.empty()) why("%s", d.partial.c_str()), claim = qe::Claim::fallback;
    }
    return claim;
  }

  static int pick(const qe_model& m, const qe_layer& l, const qe_part& part, qe::Reason&) {
    const Module d = module(m, l, part);
    if (d.wide_scales) return d.bits == 4 ? 7 : 8;
    return d.bits - 2;
  }

  static std::string scheme(const qe_model& m, const qe_layer& l) {
    const Module d = module(m, l, *l.parts[0]);
    return qe::format("w%d", d.bits) + (d.group_size > 0 ? qe::format("g%lld", static_cast<long long>(d.group_size)) : "");
  }

 private:
  static Module module(const qe_model& m, const qe_layer& l, const qe_part& p) { return describe(m, qe::view(p.name), p.role, p.n, l.k); }
};

}  // namespace qengine::gptq

QE_LINEAR_PLUGIN(qengine::gptq::Plugin, .id = "qengine.gptq_marlin", .name = "gptq_marlin", .version = "0.1.0", .vendor = "qengine",
                 .summary = "GPTQ and pack-quantized weights of 2 to 8 bits")
