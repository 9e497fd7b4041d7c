// fp8_checkpoint: weights that a quantizer stored as E4M3, in every dialect of scales.
#include <qe/stream_linear.hpp>

#include "format.hpp"

namespace qengine::fp8 {

struct Plugin : qe::Linears<Plugin, Row, Block, Group> {
  static constexpr qe::Row kRows[] = {{QE_CPU, 0, 0, 1}, {QE_CUDA, 80, 0, 2}};
  static constexpr qe::Method kMethods[] = {
      {"fp8", "fp8", "quant_method fp8: per tensor, per row, blocks"},
      {"float_quantized", "compressed-tensors", "compressed-tensors float-quantized"},
      {"modelopt", "modelopt", "ModelOpt FP8"},
      {"fbgemm_fp8", "fbgemm_fp8", "FBGEMM FP8, a scale a row"}};
  static constexpr qe_alias kAliases[] = {
      {sizeof(qe_alias), 2, "fp8", "fp8", "fp8_checkpoint", "", "", ""},
      {sizeof(qe_alias), 2, "fp8", "compressed-tensors", "fp8_checkpoint", "", "", ""},
      {sizeof(qe_alias), 2, "fp8", "modelopt", "fp8_checkpoint", "", "", ""},
      {sizeof(qe_alias), 2, "fp8", "fbgemm_fp8", "fp8_checkpoint", "", "", ""},
      {sizeof(qe_alias), 2, "modelopt", "modelopt", "fp8_checkpoint", "", "", ""},
      {sizeof(qe_alias), 2, "fbgemm_fp8", "fbgemm_fp8", "fp8_checkpoint", "", "", ""}};

  static int detect(const qe_model& m, qe::Reason& why) { return fp8::detect(m, why); }

  static int pick(const qe_model& m, const qe_layer& l, const qe_part& part, qe::Reason& why) {
    const Module d = describe(m, qe::view(part.name), part.role, part.n, l.k);
    using Grid = Module::Grid;
    if (d.grid == Grid::kNone) return why("%s", d.reason.c_str()), -1;
    if (!d.note.empty()) why("%s", d.note.c_str());
    return d.grid == Grid::kBlock ? 1 : d.grid == Grid::kGroup ? 2 : 0;
  }

  static std::string scheme(const qe_model& m, const qe_layer& l) {
    if (!l.n_parts) return {};
    const Module d = describe(m, qe::view(l.parts[0]->name), l.parts[0]->role, l.parts[0]->n, l.k);
    const qe::Activation::Kind kind = activation_of(d, l.flags).kind;
    const bool act = (l.flags & QE_LAYER_ACT_QUANT) && kind != qe::Activation::none;
    const char* how = kind == qe::Activation::e4m3_static ? "+static" : kind == qe::Activation::e4m3_group ? "+group" : "+token";
    return d.scheme + (act ? how : "");
  }
};

}  // namespace qengine::fp8

QE_LINEAR_PLUGIN(qengine::fp8::Plugin, .id = "qengine.fp8_checkpoint", .name = "fp8_checkpoint", .version = "0.1.0", .vendor = "qengine",
                 .summary = "FP8 (E4M3) checkpoints: tensor, row, group and block scales")
