// compressed_tensors: the schemes of compressed-tensors checkpoints that no other plugin owns: int8 W8A8, MXFP8, MXFP4, NVFP4.
#include <qe/stream_linear.hpp>

#include "format.hpp"

namespace qengine::ct {

struct Plugin : qe::Linears<Plugin, Int8Row, Int8Zero, MxFp8, MxFp4, NvFp4, NvFp4Multiplier> {
  static constexpr qe::Row kRows[] = {{QE_CPU, 0, 0, 1}, {QE_CUDA, 80, 0, 2}};
  static constexpr qe::Method kMethods[] = {
      {"compressed_tensors", "compressed-tensors", "int-quantized, mxfp4-pack-quantized, mxfp8-quantized, nvfp4-pack-quantized"},
      {"modelopt_fp4", "modelopt,modelopt_fp4,modelopt_mxfp8", "ModelOpt NVFP4 and MXFP8"}};
  static constexpr qe_alias kAliases[] = {{sizeof(qe_alias), 2, "compressed-tensors", "compressed-tensors", "compressed_tensors", "", "", ""},
                                          {sizeof(qe_alias), 2, "modelopt_fp4", "modelopt_fp4", "compressed_tensors", "", "", ""}};

  static int detect(const qe_model& m, qe::Reason& why) { return ct::detect(m, why); }

  static int pick(const qe_model& m, const qe_layer& l, const qe_part& part, qe::Reason& why) {
    const Module d = describe(m, qe::view(part.name), part.role, part.n, l.k);
    if (d.kind == Kind::kNone) return why("%s", d.reason.c_str()), -1;
    if (!d.note.empty()) why("%s", d.note.c_str());
    return static_cast<int>(d.kind) - 1;
  }

  static std::string scheme(const qe_model& m, const qe_layer& l) {
    if (!l.n_parts) return {};
    const Module d = describe(m, qe::view(l.parts[0]->name), l.parts[0]->role, l.parts[0]->n, l.k);
    const bool act = (l.flags & QE_LAYER_ACT_QUANT) && d.activation.kind != qe::Activation::none;
    return d.scheme + (act ? d.activation.kind == qe::Activation::i8_static ? "+static" : d.activation.kind == qe::Activation::i8_token ? "+token" : "+block" : "");
  }
};

}  // namespace qengine::ct

QE_LINEAR_PLUGIN(qengine::ct::Plugin, .id = "qengine.compressed_tensors", .name = "compressed_tensors", .version = "0.1.0", .vendor = "qengine",
                 .summary = "compressed-tensors int8, MXFP8, MXFP4 and NVFP4")
