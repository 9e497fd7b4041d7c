#include "core/layers/attention.hpp"

#include <algorithm>
#include <cmath>

namespace qengine {
namespace {

// Floats of one accumulator on the stack; head_dim up to this with a single row.
constexpr int kAccFloats = kAttnRows * 256;
// Multiply-adds below which a second thread costs more than it saves.
constexpr std::int64_t kSerialWork = 150'000;

}  // namespace

struct Attention::Call {
  const KvCache& cache;
  int layer;
  std::int64_t window;
  const float* q;
  std::int64_t q_stride;
  float* out;
  std::int64_t out_stride;
};

struct Attention::Rows {
  const float* q[kAttnRows];
  std::int64_t out[kAttnRows];       // offset of the row's result
  std::int64_t position[kAttnRows];
  std::int64_t first_tile, last_tile;  // that any row sees
};

Attention::Attention(const Kernels& kernels, ThreadPool& pool, int num_heads, int num_kv_heads, int head_dim)
    : kernels_(kernels), pool_(pool), heads_(num_heads), kv_heads_(num_kv_heads), group_(num_heads / num_kv_heads),
      head_dim_(head_dim), pad_((head_dim + 7) / 8 * 8) {
  rows_per_unit_ = std::clamp(kAccFloats / pad_, 1, kAttnRows);
  // Whole tokens where a group fits: their rows see the same keys.
  if (rows_per_unit_ >= group_) rows_per_unit_ -= rows_per_unit_ % group_;
}

void Attention::plan(std::span<const AttnSeq> seqs) {
  seqs_.assign(seqs.begin(), seqs.end());
  units_.clear();
  parts_.clear();
  first_part_.clear();
  std::int64_t work = 0, tiles = 0;
  for (std::size_t s = 0; s < seqs_.size(); ++s) {
    const std::int64_t rows = seqs_[s].count * group_;
    work += seqs_[s].count * heads_ * (seqs_[s].first + seqs_[s].count) * head_dim_ * 2;
    // The last rows see the most keys: start with them, so that threads end together.
    for (std::int64_t r = (rows - 1) / rows_per_unit_ * rows_per_unit_; r >= 0; r -= rows_per_unit_)
      for (int h = 0; h < kv_heads_; ++h)
        units_.push_back({static_cast<std::int32_t>(s), h, static_cast<std::int32_t>(r),
                          static_cast<std::int32_t>(std::min<std::int64_t>(rows_per_unit_, rows - r))});
    tiles = std::max(tiles, (seqs_[s].first + seqs_[s].count - 1) / kAttnTile + 1);
  }
  serial_ = work < kSerialWork || pool_.threads() == 1;
  if (serial_ || tiles < 2 || std::ssize(units_) >= 3 * pool_.threads()) return;
  first_part_.push_back(0);
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const AttnSeq& q = seqs_[units_[u].seq];
    const std::int64_t last = q.first + (units_[u].row0 + units_[u].rows - 1) / group_;
    for (std::int64_t t = 0; t <= last / kAttnTile; ++t) parts_.push_back({static_cast<std::int32_t>(u), static_cast<std::int32_t>(t)});
    first_part_.push_back(static_cast<std::int32_t>(parts_.size()));
  }
  const std::size_t need = parts_.size() * static_cast<std::size_t>(rows_per_unit_) * (pad_ + 2);
  if (partial_.size() < need) partial_.resize(need * 5 / 4);
}

void Attention::gather_rows(const Call& c, const Unit& u, Rows& rows) const {
  const AttnSeq& s = seqs_[u.seq];
  std::int64_t first_key = INT64_MAX;
  for (int r = 0; r < u.rows; ++r) {
    const std::int64_t token = (u.row0 + r) / group_, head = u.kv_head * group_ + (u.row0 + r) % group_;
    rows.q[r] = c.q + (s.row + token) * c.q_stride + head * head_dim_;
    rows.out[r] = (s.row + token) * c.out_stride + head * head_dim_;
    rows.position[r] = s.first + token;
    first_key = std::min(first_key, c.window > 0 ? std::max<std::int64_t>(0, rows.position[r] - c.window + 1) : 0);
  }
  rows.first_tile = first_key / kAttnTile;
  rows.last_tile = rows.position[u.rows - 1] / kAttnTile;
}

// False when no row sees a key of the tile: m, l, acc are then not written.
bool Attention::tile(const Call& c, const Unit& u, const Rows& rows, std::int64_t t, float* m, float* l, float* acc) const {
  if (t < rows.first_tile || t > rows.last_tile) return false;
  std::int32_t lo[kAttnRows], hi[kAttnRows];
  const std::int64_t begin = t * kAttnTile;
  for (int r = 0; r < u.rows; ++r) {
    const std::int64_t p = rows.position[r];
    hi[r] = static_cast<std::int32_t>(std::clamp<std::int64_t>(p + 1 - begin, 0, kAttnTile));
    lo[r] = c.window > 0 ? static_cast<std::int32_t>(std::clamp<std::int64_t>(p - c.window + 1 - begin, 0, kAttnTile)) : 0;
  }
  AttnTile a;
  a.rows = u.rows;
  a.q = rows.q;
  a.lo = lo;
  a.hi = hi;
  a.head_dim = head_dim_;
  a.head_pad = pad_;
  a.block_size = c.cache.block_size();
  a.m = m;
  a.l = l;
  a.acc = acc;
  const BlockId* blocks = seqs_[u.seq].blocks;
  const std::int64_t last = rows.position[u.rows - 1];
  for (int g = 0; g < kAttnTile / kAttnGroup; ++g) {
    const std::int64_t key = begin + g * kAttnGroup;
    if (key > last) break;
    const BlockId block = blocks[key / a.block_size];
    const int offset = static_cast<int>(key % a.block_size);
    a.k[g] = c.cache.k_at(c.layer, block, u.kv_head, offset);
    a.v[g] = c.cache.v_at(c.layer, block, u.kv_head, offset);
  }
  kernels_.attn_tile(c.cache.dtype(), a);
  return true;
}

void Attention::finish(const Call& c, const Rows& rows, int count, const float* l, float* acc) const {
  for (int r = 0; r < count; ++r) {
    float* row = acc + static_cast<std::int64_t>(r) * pad_;
    kernels_.scale(row, 1.0f / l[r], pad_);
    std::copy_n(row, head_dim_, c.out + rows.out[r]);
  }
}

void Attention::whole_unit(const Call& c, const Unit& u) const {
  Rows rows;
  gather_rows(c, u, rows);
  float m[kAttnRows], l[kAttnRows], tm[kAttnRows], tl[kAttnRows];
  alignas(32) float acc[kAccFloats], tacc[kAccFloats];
  tile(c, u, rows, rows.first_tile, m, l, acc);
  for (std::int64_t t = rows.first_tile + 1; t <= rows.last_tile; ++t) {
    tile(c, u, rows, t, tm, tl, tacc);
    for (int r = 0; r < u.rows; ++r)
      kernels_.attn_merge(m + r, l + r, acc + static_cast<std::int64_t>(r) * pad_, tm[r], tl[r], tacc + static_cast<std::int64_t>(r) * pad_, pad_);
  }
  finish(c, rows, u.rows, l, acc);
}

void Attention::run(const KvCache& cache, int layer, std::int64_t window, const float* q, std::int64_t q_stride, float* out,
                    std::int64_t out_stride) {
  const Call c{cache, layer, window, q, q_stride, out, out_stride};
  if (serial_) {
    for (const Unit& u : units_) whole_unit(c, u);
    return;
  }
  if (parts_.empty()) {
    pool_.parallel_for(std::ssize(units_), [&](std::int64_t i) { whole_unit(c, units_[static_cast<std::size_t>(i)]); });
    return;
  }
  const std::int64_t stride = static_cast<std::int64_t>(rows_per_unit_) * (pad_ + 2);
  pool_.parallel_for(std::ssize(parts_), [&](std::int64_t i) {
    const Unit& u = units_[static_cast<std::size_t>(parts_[static_cast<std::size_t>(i)].unit)];
    float* p = partial_.data() + i * stride;
    Rows rows;
    gather_rows(c, u, rows);
    if (!tile(c, u, rows, parts_[static_cast<std::size_t>(i)].tile, p, p + rows_per_unit_, p + 2 * rows_per_unit_))
      std::fill_n(p + rows_per_unit_, rows_per_unit_, 0.0f);
  });
  const auto join = [&](std::int64_t i) {
    const Unit& u = units_[static_cast<std::size_t>(i)];
    Rows rows;
    gather_rows(c, u, rows);
    float m[kAttnRows], l[kAttnRows] = {};
    alignas(32) float acc[kAccFloats];
    for (std::int32_t k = first_part_[static_cast<std::size_t>(i)]; k < first_part_[static_cast<std::size_t>(i) + 1]; ++k) {
      const float* p = partial_.data() + k * stride;
      for (int r = 0; r < u.rows; ++r)
        kernels_.attn_merge(m + r, l + r, acc + static_cast<std::int64_t>(r) * pad_, p[r], p[rows_per_unit_ + r],
                            p + 2 * rows_per_unit_ + static_cast<std::int64_t>(r) * pad_, pad_);
    }
    finish(c, rows, u.rows, l, acc);
  };
  if (std::ssize(parts_) * units_.front().rows * pad_ < kSerialWork / 8)
    for (std::int64_t i = 0; i < std::ssize(units_); ++i) join(i);
  else
    pool_.parallel_for(std::ssize(units_), join);
}

}  // namespace qengine
