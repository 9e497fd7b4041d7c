#include "core/engine/cuda_kv.hpp"

namespace qengine {

CudaKv::CudaKv(Gpu& gpu, const CudaKvShape& shape, std::int64_t num_blocks, std::span<const float> k_scale, std::span<const float> v_scale)
    : shape_(shape), half_(shape.block_bytes() / (2 * shape.layers) * num_blocks),
      data_(gpu, static_cast<std::uint64_t>(half_ * 2 * shape.layers), MemoryOwner::kKvCache, "the KV cache") {
  if (k_scale.empty()) return;
  scales_ = DeviceBuffer(gpu, (k_scale.size() + v_scale.size()) * sizeof(float), MemoryOwner::kKvCache, "scales of the KV cache");
  gpu.upload(scales_.get(), k_scale.data(), k_scale.size_bytes(), nullptr);
  gpu.upload(scales_.get<float>() + k_scale.size(), v_scale.data(), v_scale.size_bytes(), nullptr);
}

cuda::KvPool CudaKv::pool(int layer) const {
  cuda::KvPool p;
  p.k = data_.get<char>() + layer * 2 * half_;
  p.v = data_.get<char>() + (layer * 2 + 1) * half_;
  p.type = shape_.type;
  p.block_tokens = shape_.block_size;
  p.block_stride = std::int64_t{shape_.kv_heads} * shape_.head_dim * shape_.block_size;
  const bool own = shape_.type == cuda::KvType::kBf16;
  p.token_stride = own ? shape_.head_dim : std::int64_t{shape_.kv_heads} * shape_.head_dim;
  p.head_stride = own ? std::int64_t{shape_.head_dim} * shape_.block_size : shape_.head_dim;
  if (scales_.get()) {
    p.k_scale = scales_.get<float>() + layer * shape_.kv_heads;
    p.v_scale = p.k_scale + shape_.layers * shape_.kv_heads;
  }
  return p;
}

}  // namespace qengine
