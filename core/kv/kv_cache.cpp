#include "core/kv/kv_cache.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "core/base/error.hpp"

namespace qengine {

std::int64_t kv_element_size(KvDtype dtype) { return dtype == KvDtype::kF32 ? 4 : 2; }

std::string kv_dtype_name(KvDtype dtype) {
  return dtype == KvDtype::kF32 ? "float32" : dtype == KvDtype::kF16 ? "float16" : "bfloat16";
}

std::int64_t KvShape::block_bytes() const {
  return std::int64_t{layers} * kv_heads * block_size * (head_dim + head_pad()) * kv_element_size(dtype);
}

std::int64_t KvShape::bytes_per_token() const { return (block_bytes() + block_size - 1) / block_size; }

KvCache::KvCache(const KvShape& shape, std::int32_t num_blocks) : shape_(shape), num_blocks_(num_blocks) {
  element_ = kv_element_size(shape.dtype);
  k_head_ = element_ * shape.head_dim * shape.block_size;
  k_block_ = k_head_ * shape.kv_heads;
  v_token_ = element_ * shape.head_pad();
  v_head_ = v_token_ * shape.block_size;
  v_block_ = v_head_ * shape.kv_heads;
  v_offset_ = k_block_ * num_blocks;
  layer_bytes_ = v_offset_ + v_block_ * num_blocks;
  bytes_ = static_cast<std::uint64_t>(layer_bytes_) * static_cast<std::uint64_t>(shape.layers);
  void* p = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED)
    throw Error("E403", "no address space for a KV cache of " + std::to_string(bytes_) + " bytes: " + std::strerror(errno))
        .hint("--kv-cache-memory-bytes or --max-model-len make it smaller");
  base_ = static_cast<std::byte*>(p);
}

KvCache::~KvCache() { munmap(base_, bytes_); }

}  // namespace qengine
