// How a module of an AWQ checkpoint lies on disk, and how it is read. 4 bits, unsigned codes.
//
//   gemm       P.qweight I32 [K, N/8], P.qzeros I32 [K/g, N/8]   8 columns a word in nibbles 0,4,1,5,2,6,3,7
//              P.scales F16 or BF16 [K/g, N]
//   gemv       P.qweight I32 [N, K/8], P.qzeros I32 [N, zw]      plain order along k; zw >= ceil(K/g/8)
//              P.scales F16 [N, 8*zw]
//   gemv_fast  P.qweight I16 [N/4, K]                            four rows interleaved by 64 inputs
//              P.scales, P.qzeros F16 [8*zw, N]                  W = scales*code + qzeros
//   marlin     P.qweight I32 [K/16, 2N], P.scales permuted       no zero points
//   W[n,k] = scales[g,n] * (code - zero)                          zero as stored; 8 where there are none
//
// and compressed-tensors pack-quantized with 4 bits. Tensors beat the configuration: shapes say which layout it
// is, whatever `version` says, and a module with a plain `weight` and no `qweight` is not quantized.
#pragma once

#include <qe/plugin.hpp>

#include <string>
#include <vector>

#include "shared/int_matrix.hpp"
#include "shared/pack_quantized.hpp"

namespace qengine::awq {

enum class Layout { kGemm, kGemv, kGemvFast, kMarlin };
const char* layout_text(Layout);

struct Config {
  int bits = 0;
  std::int64_t group_size = 0;  // -1: one group
  bool zero_point = true;
  Layout version = Layout::kGemm;
  std::string version_written;
  bool lm_head = false;
  std::vector<std::string> skip;  // modules_to_not_convert: substrings of module names
  std::string problem;            // "" = all of it was understood

  // REQUIRES: quant_method is awq, or AutoRound's with AWQ packing.
  static Config read(qe_cfg cfg);
};

// What a module is stored as, or why it is not ours.
struct Module {
  enum class Storage { kNone, kAwq, kPackQuantized };
  Storage storage = Storage::kNone;
  std::string reason;   // kNone: why
  std::string partial;  // else: what of the scheme is left out
  std::string note;     // else: what of the configuration the tensors contradict
  Layout layout = Layout::kGemm;
  bool zero_point = true;
  packed::PackedModule packed;  // of kPackQuantized
  std::int64_t group_size = -1;
  enum class Records { kScaleZero, kWideScaleZero, kScaleOffset } records = Records::kScaleZero;
};
Module describe(const qe_model& model, std::string_view name, int role, std::int64_t n, std::int64_t k);

// The layout that these shapes are of; `written` where they fit several or none.
Layout layout_of(const qe_tensor& qweight, const qe_tensor* scales, std::int64_t n, std::int64_t k, std::int64_t group_size, Layout written);

// Asks for the module's tensors; with data at hand also checks values. Throws qe::Error naming the tensor.
// REQUIRES: module.storage is not kNone.
packed::IntMatrix bind(qe::Io& io, const qe::Part& part, const Module& module);

// 0 to 1000 and the sentence for it.
int detect(const qe_model& model, qe::Reason& why);

}  // namespace qengine::awq
