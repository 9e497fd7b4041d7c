// FP8 checkpoints: one E4M3 byte a weight, scales per tensor, per row, per group or per block, in four dialects.
//
//   dialect                      weight          scale                                  activations
//   quant_method fp8             P.weight        P.weight_scale [] [1] [N]              static: P.input_scale; dynamic: per token
//     by transformers            P.weight        P.weight_scale_inv [] [1] [N]          static: P.activation_scale
//     with weight_block_size     P.weight        P.weight_scale_inv [ceil(N/b), ceil(K/b)]    dynamic, per b inputs
//   compressed-tensors           P.weight        P.weight_scale [1] | [N, 1] | blocks | [N, K/g]   as config_groups says
//   modelopt                     P.weight        P.weight_scale [] | [N] | [a, 1, b, 1]  P.input_scale or per token
//   fbgemm_fp8                   P.weight        P.weight_scale [N, 1]                  per token, amax bounded; P.input_scale_ub
//
// W[n,k] = e4m3(weight[n,k]) * scale, one rounding; weight_scale_inv multiplies too, in spite of its name.
// Sources: vllm-project/vllm quantization/fp8.py, modelopt.py, fbgemm_fp8.py; compressed-tensors quant_scheme.py.
#pragma once

#include <qe/plugin.hpp>

#include "shared/compressed_tensors_config.hpp"
#include "shared/fp8_format.hpp"

namespace qengine::fp8 {

// How one module is stored, or why it is not ours.
struct Module {
  enum class Grid { kNone, kTensor, kRow, kBlock, kGroup };
  Grid grid = Grid::kNone;
  std::string reason;          // when kNone
  std::string note;            // when ours: what of the scheme is left out
  const char* scale_name = "weight_scale";
  const char* input_name = "input_scale";
  const char* bound_name = nullptr;  // where the file may hold the bound of the activations
  std::int64_t block_n = 1, block_k = 0;  // kBlock, kGroup
  bool modelopt_block = false;            // scales of rank 4: [a, 1, b, 1], or of rank 2
  bool static_input = false;
  qe::Activation activation;
  std::string scheme;  // "fp8_block128x128"
};

Module describe(const qe_model& model, std::string_view name, int role, std::int64_t n, std::int64_t k);

// What a layer with these flags does with its inputs: as the checkpoint says; where it says nothing, as asked for.
qe::Activation activation_of(const Module& module, std::int32_t flags);

// 0 to 1000 and the sentence for it.
int detect(const qe_model& model, qe::Reason& why);

// Asks for the module's tensors; with data at hand also checks values.
packed::ByteMatrix bind(qe::Io& io, const qe::Part& part, const Module& module);

template <template <class> class Of>
struct Fp8 : Of<packed::E4M3Value> {
  static packed::ByteMatrix bind(qe::Io& io, const qe::Part& p) { return fp8::bind(io, p, describe(p.model(), p.name(), p.role(), p.n(), p.k())); }
};
using Row = Fp8<packed::ByteRow>;
using Block = Fp8<packed::ByteBlock>;  // rows of a block are a multiple of 8
using Group = Fp8<packed::ByteGroup>;

}  // namespace qengine::fp8
