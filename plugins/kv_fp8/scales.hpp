// Where checkpoints put the scales of an FP8 KV cache, and what is done when they are not there.
//
//   stored = x / scale, x = stored * scale; K is quantized after rotary
//   one value a layer, or one a KV head ([kv_heads] or [kv_heads, 1, 1]); F32, F16 or BF16
//
//   spelling below model.layers.I.self_attn            who
//   k_scale, v_scale                                   compressed-tensors
//   k_proj.k_scale, v_proj.v_scale                     ModelOpt
//   attn.k_scale, qkv_proj.k_scale (v likewise)        vLLM's own names
//   k_proj.output_scale, v_proj.output_scale           old compressed-tensors
//   kv_scale                                           old, for both
//
// Source: vllm-project/vllm weight_utils.py (maybe_remap_kv_scale_name); compressed-tensors quantization/.
#pragma once

#include <qe/plugin.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace qengine::kv_fp8 {

struct Scales {
  std::int32_t layers = 0, heads = 0;
  std::vector<float> k, v;  // [layers * heads]
  bool from_checkpoint = false, per_head = false;
  std::vector<std::string> notes;  // to be said once
};

// Looks at every spelling, so that the host knows which tensors belong to the cache. Throws qe::Error
// naming the tensor for zero points, wrong counts and values that are not finite.
Scales find_scales(const qe_model& model);

}  // namespace qengine::kv_fp8
