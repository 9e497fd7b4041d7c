// bitsandbytes: checkpoints saved in NF4, FP4 (nested or not) and LLM.int8().
#include <qe/stream_linear.hpp>

#include "format.hpp"

namespace qengine::bnb {

struct Plugin : qe::Linears<Plugin, Nf4, Fp4, Int8> {
  static constexpr qe::Row kRows[] = {{QE_CPU, 0, 0, 1}, {QE_CUDA, 80, 0, 2}};
  static constexpr qe::Method kMethods[] = {{"bitsandbytes", "bitsandbytes", "NF4, FP4, double quantization, LLM.int8()"}};
  static int detect(const qe_model& m, qe::Reason& why) { return bnb::detect(m, why); }
  static int pick(const qe_model& m, const qe_layer&, const qe_part& part, qe::Reason& why) {
    const Module d = describe(m, qe::view(part.name), part.role);
    if (d.kind == Kind::kNone) return why("%s", d.reason.c_str()), -1;
    return static_cast<int>(d.kind) - 1;
  }
  static std::string scheme(const qe_model& m, const qe_layer& l) {
    if (!l.n_parts) return {};
    switch (describe(m, qe::view(l.parts[0]->name), l.parts[0]->role).kind) {
      case Kind::kNf4: return "nf4";
      case Kind::kFp4: return "fp4";
      case Kind::kInt8: return "int8";
      case Kind::kNone: break;
    }
    return {};
  }
};

}  // namespace qengine::bnb

QE_LINEAR_PLUGIN(qengine::bnb::Plugin, .id = "qengine.bitsandbytes", .name = "bitsandbytes", .version = "0.1.0", .vendor = "qengine",
                 .summary = "bitsandbytes NF4, FP4 and LLM.int8()")
