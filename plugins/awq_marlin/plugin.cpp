// awq_marlin: AWQ weights of 4 bits in the layouts of AutoAWQ, llm-awq and GPTQModel, and compressed-tensors
// pack-quantized ones with zero points.
#include <qe/stream_linear.hpp>

#include "formats.hpp"

namespace qengine::awq {

struct Plugin : qe::Linears<Plugin, W4, W4F32, W4Offset> {
  static constexpr qe::Row kRows[] = {{QE_CPU, 0, 0, 1}, {QE_CUDA, 80, 0, 2}};
  static constexpr qe::Method kMethods[] = {
      {"awq", "awq", "AWQ, 4 bits: gemm, gemv, gemv_fast and marlin layouts"},
      {"auto_round", "auto-round,intel/auto-round", "AutoRound with AWQ packing"},
      {"pack_quantized", "compressed-tensors", "compressed-tensors W4A16_ASYM"}};
  static constexpr qe_alias kAliases[] = {
      {sizeof(qe_alias), 2, "awq", "awq", "awq_marlin", "", "", ""},
      {sizeof(qe_alias), 2, "auto_awq", "awq", "awq_marlin", "", "", ""},
      {sizeof(qe_alias), 2, "marlin", "awq", "awq_marlin", "0.1.0", "",
       "which names the plugin; the checkpoint's own quant_method is found without the flag"}};

  static int detect(const qe_model& m, qe::Reason& why) { return awq::detect(m, why); }

  static qe::Claim check(const qe_model& m, const qe_layer& l, qe::Reason& why) {
    qe::Claim claim = qe::Claim::native;
    for (std::uint32_t i = 0; i < l.n_parts; ++i) {
      const Module d = module(m, l, *l.parts[i]);
      if (d.storage == Module::Storage::kNone) return why("%s", d.reason.c_str()), qe::Claim::no;
      if (!d.note.empty() && claim == qe::Claim::native) why("%s", d.note.c_str());
      if (!d.partial.empty()) why("%s", d.partial.c_str()), claim = qe::Claim::fallback;
    }
    return claim;
  }

  static int pick(const qe_model& m, const qe_layer& l, const qe_part& part, qe::Reason&) {
    return static_cast<int>(module(m, l, part).records);
  }

  static std::string scheme(const qe_model& m, const qe_layer& l) {
    const Module d = module(m, l, *l.parts[0]);
    return d.group_size > 0 ? qe::format("w4g%lld", static_cast<long long>(d.group_size)) : std::string("w4");
  }

 private:
  static Module module(const qe_model& m, const qe_layer& l, const qe_part& p) {
    return describe(m, qe::view(p.name), p.role, p.n, l.k);
  }
};

}  // namespace qengine::awq

QE_LINEAR_PLUGIN(qengine::awq::Plugin, .id = "qengine.awq_marlin", .name = "awq_marlin", .version = "0.1.0", .vendor = "qengine",
                 .summary = "AWQ weights of 4 bits")
