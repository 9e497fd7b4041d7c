// CudaKv: the bytes of the KV cache on a GPU, and how attention finds its way in them.
//
// bf16   core's own: [block][kv_head][slot][dim], so that a head's keys of a block lie together
// e4m3   as a plugin whose encoding is known stores them: [block][slot][kv_head][dim], one byte each,
//        with a scale per KV head and layer
#pragma once

#include <span>
#include <vector>

#include "core/device/gpu.hpp"
#include "core/layers/cuda/kernels.hpp"

namespace qengine {

struct CudaKvShape {
  int layers = 0, kv_heads = 0, head_dim = 0, block_size = 16;
  cuda::KvType type = cuda::KvType::kBf16;

  std::int64_t block_bytes() const {  // of one block over all layers
    return std::int64_t{2} * layers * kv_heads * head_dim * block_size * (type == cuda::KvType::kBf16 ? 2 : 1);
  }
};

class CudaKv {
 public:
  // k_scale, v_scale: [layers * kv_heads], or empty for 1. Throws Error E403.
  CudaKv(Gpu& gpu, const CudaKvShape& shape, std::int64_t num_blocks, std::span<const float> k_scale, std::span<const float> v_scale);

  cuda::KvPool pool(int layer) const;
  std::uint64_t bytes() const { return data_.bytes(); }
  const CudaKvShape& shape() const { return shape_; }

 private:
  CudaKvShape shape_;
  std::int64_t half_;  // bytes of one layer's keys
  DeviceBuffer data_, scales_;
};

}  // namespace qengine
