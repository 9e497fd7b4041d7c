// How a module of a GPTQ checkpoint lies on disk, and how it is read.
//
//   P.qweight  I32 [ceil(K*b/32), N]            column n is a stream of b-bit codes along k, lowest bit first
//   P.qzeros   I32 [ceil(K/g), ceil(N*b/32)]    the same along n
//   P.scales   F16, BF16 or F32 [ceil(K/g), N]
//   P.g_idx    I32 [K]                          group of each input; absent where groups are in order
//   W[n,k] = scales[g,n] * (code - zero)        zero = stored + 1 modulo 2^b (gptq), or as stored (gptq_v2, gptq_p)
//
//   P.B        I32 [K/16, 2N]                   the first Marlin files: 4 bits, symmetric, 16x16 tiles
//   P.s        F16 [ceil(K/g), N]               permuted within blocks of 64 or 32 columns
//
// Tensors beat the configuration: a module with a plain `weight` and no `qweight` is not quantized, a file
// whose symmetric zero points are those of the other version is read as that version, and the order of inputs
// is what g_idx says, whatever desc_act does.
#pragma once

#include <qe/plugin.hpp>

#include "config.hpp"
#include "shared/int_matrix.hpp"
#include "shared/pack_quantized.hpp"

namespace qengine::gptq {

// What a module is stored as, or why it is not ours.
struct Module {
  enum class Storage { kNone, kGptq, kMarlin, kPackQuantized };
  Storage storage = Storage::kNone;
  std::string reason;   // kNone: why
  std::string partial;  // else: what of the scheme is left out
  Parameters parameters;
  DiskFormat format = DiskFormat::kGptq;  // of kGptq
  packed::PackedModule packed;            // of kPackQuantized
  int bits = 0;
  std::int64_t group_size = -1;
  bool wide_scales = false;  // F32: records of their own
};
Module describe(const qe_model& model, std::string_view name, int role, std::int64_t n, std::int64_t k);

// Asks for the module's tensors; with data at hand also checks values. Throws qe::Error naming the tensor.
// REQUIRES: module.storage is not kNone.
packed::IntMatrix bind(qe::Io& io, const qe::Part& part, const Module& module);

// Which of the two conventions the zero points of a symmetric module follow.
enum class ZeroPoints { kOneLess /* v1 */, kTrue /* v2 */, kMixed };
ZeroPoints zero_points_of(const packed::IntMatrix& m);

// 0 to 1000 and the sentence for it.
int detect(const qe_model& model, qe::Reason& why);

}  // namespace qengine::gptq
