#include "core/engine/plugin_kv.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <mutex>

#include "core/base/checked.hpp"
#include "core/base/error.hpp"

namespace qengine {
namespace {

// Positions of one gather call: what a thread decodes at once and spreads into core's layout.
constexpr std::int64_t kGather = 128;
// The scratch cache holds at least so many positions, and one sequence of any length.
constexpr std::int64_t kScratchTokens = 32'768;

KvShape scratch_shape(const KvShape& s) { return {1, s.kv_heads, s.head_dim, s.block_size, KvDtype::kF32}; }

qe_tensor rows(const float* data, std::int64_t n, std::int64_t width, std::int64_t stride) {
  return {QE_F32, 2, {n, width, 0, 0}, {stride, 1, 0, 0}, const_cast<float*>(data)};
}

// Pools begin on pages, which is more than any plugin's alignment.
std::uint64_t pages(std::uint64_t bytes) { return (bytes + 4095) / 4096 * 4096; }

}  // namespace

std::int64_t PluginKv::block_bytes(const KvFormat& format, int layers) {
  const qe_kv_plan& p = format.plan();
  return static_cast<std::int64_t>(p.block_bytes_k + p.block_bytes_v + p.block_bytes_scale) * layers;
}

PluginKv::PluginKv(std::unique_ptr<KvFormat> format, const KvShape& shape, std::int32_t num_blocks, std::int64_t max_model_len, ThreadPool& pool)
    : format_(std::move(format)), shape_(shape), pool_(pool), kernels_(kernels()),
      scratch_blocks_(std::min<std::int64_t>(num_blocks, ceil_div(std::max(kScratchTokens, max_model_len), shape.block_size) + 1)),
      scratch_(scratch_shape(shape), static_cast<std::int32_t>(scratch_blocks_)) {
  const qe_kv_plan& p = format_->plan();
  const std::uint64_t n = static_cast<std::uint64_t>(num_blocks);
  part_[0] = pages(p.block_bytes_k * n);
  part_[1] = pages(p.block_bytes_v * n);
  part_[2] = pages(p.block_bytes_scale * n);
  layer_bytes_ = part_[0] + part_[1] + part_[2];
  bytes_ = layer_bytes_ * static_cast<std::uint64_t>(shape.layers);
  void* m = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (m == MAP_FAILED)
    throw Error("E403", "no address space for a KV cache of " + std::to_string(bytes_) + " bytes: " + std::strerror(errno))
        .hint("--kv-cache-memory-bytes or --max-model-len make it smaller");
  base_ = static_cast<std::byte*>(m);
  for (std::int64_t i = 0; i < scratch_blocks_; ++i) tables_.push_back(static_cast<BlockId>(i));
}

PluginKv::~PluginKv() { munmap(base_, bytes_); }

std::byte* PluginKv::pool_of(int layer, int what) const {
  std::byte* p = base_ + static_cast<std::uint64_t>(layer) * layer_bytes_;
  for (int i = 0; i < what; ++i) p += part_[i];
  return p;
}

void PluginKv::store(int layer, const float* k, const float* v, std::int64_t stride, std::span<const std::int64_t> slots) {
  qe_kv_args a{};
  a.layer = layer;
  a.n_tokens = static_cast<std::int32_t>(slots.size());
  a.k = rows(k, std::ssize(slots), shape_.kv_heads * shape_.head_dim, stride);
  a.v = rows(v, std::ssize(slots), shape_.kv_heads * shape_.head_dim, stride);
  a.pool_k = pool_of(layer, 0);
  a.pool_v = pool_of(layer, 1);
  a.pool_scale = part_[2] ? pool_of(layer, 2) : nullptr;
  a.slot = slots.data();
  format_->store(a);
}

std::vector<std::pair<std::size_t, std::size_t>> PluginKv::groups(std::span<const AttnSeq> seqs) const {
  std::vector<std::pair<std::size_t, std::size_t>> out;
  std::int64_t used = 0;
  for (std::size_t i = 0; i < seqs.size(); ++i) {
    const std::int64_t need = ceil_div(seqs[i].first + seqs[i].count, shape_.block_size);
    if (out.empty() || used + need > scratch_blocks_) {
      out.emplace_back(i, i);
      used = 0;
    }
    used += need;
    out.back().second = i + 1;
  }
  return out;
}

void PluginKv::fetch(int layer, std::span<const AttnSeq> seqs, std::vector<AttnSeq>& out) {
  struct Piece {
    const BlockId* from;
    BlockId to;
    std::int64_t count;
  };
  std::vector<Piece> pieces;
  out.assign(seqs.begin(), seqs.end());
  const std::int64_t bs = shape_.block_size, per_call = std::max(bs, kGather / bs * bs);
  BlockId next = 0;
  for (AttnSeq& s : out) {
    const std::int64_t len = s.first + s.count;
    for (std::int64_t p = 0; p < len; p += per_call)
      pieces.push_back({s.blocks + p / bs, next + static_cast<BlockId>(p / bs), std::min(per_call, len - p)});
    s.blocks = tables_.data() + next;
    next += static_cast<BlockId>(ceil_div(len, bs));
  }
  const std::int64_t heads = shape_.kv_heads, dim = shape_.head_dim, row = heads * dim;
  std::exception_ptr failed;
  std::mutex mutex;
  pool_.parallel_for(std::ssize(pieces), [&](std::int64_t i) {
    const Piece& piece = pieces[static_cast<std::size_t>(i)];
    thread_local std::vector<float> buffer;
    buffer.resize(static_cast<std::size_t>(2 * per_call * row));
    float *k = buffer.data(), *v = k + per_call * row;
    const auto len = static_cast<std::int32_t>(piece.count);
    qe_kv_args a{};
    a.layer = layer;
    a.n_seqs = 1;
    a.n_tokens = len;
    a.max_blocks = static_cast<std::int32_t>(ceil_div(piece.count, bs));
    a.k = rows(k, piece.count, row, row);
    a.v = rows(v, piece.count, row, row);
    a.pool_k = pool_of(layer, 0);
    a.pool_v = pool_of(layer, 1);
    a.pool_scale = part_[2] ? pool_of(layer, 2) : nullptr;
    a.block_table = piece.from;
    a.seq_len = &len;
    try {
      format_->gather(a);
    } catch (...) {
      const std::lock_guard lock(mutex);
      failed = std::current_exception();
      return;
    }
    for (std::int64_t t = 0; t < piece.count; ++t) {
      const BlockId block = piece.to + static_cast<BlockId>(t / bs);
      for (int h = 0; h < heads; ++h) {
        kernels_.store_k(KvDtype::kF32, k + t * row + h * dim, dim, bs, scratch_.k_at(0, block, h, static_cast<int>(t % bs)));
        kernels_.store_v(KvDtype::kF32, v + t * row + h * dim, dim, shape_.head_pad(), scratch_.v_at(0, block, h, static_cast<int>(t % bs)));
      }
    }
  });
  if (failed) std::rethrow_exception(failed);
}

}  // namespace qengine
