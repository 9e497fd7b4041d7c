// attention_decode: one query token a sequence against its paged cache.
//
// Mapping  Grid (a cluster, KV heads x tiles of 8 heads of the group, teams x sequences); a team is a cluster's share
//          of a sequence, and teams that have nothing come last. Keys are dealt out in runs of 16: to teams in
//          ranges, within one to its blocks and their four warps in turn. Warps
//          join in shared memory, blocks of a cluster in each other's: each owns a share of the dimensions. Where
//          the context is long enough for several clusters these leave (m, l, o) in `partial`, and the last of them
//          to end joins, in the order of the clusters. Who has work follows from the length in device memory, so a
//          captured grid stays valid.
// Finish   With F a block first makes its heads of q (norm, rotation) for itself; the one that has the last keys also
//          makes the new key and value, puts them into the cache and takes them from shared memory.
//          What the step does not change is then read before the wait: tables, norms, and the first runs of each warp
//          but for the new token. Length and position may be being advanced just then; they are read again after
//          the wait, and what was built on another value is built anew.
// Queue    A warp has `depth` runs on their way through shared memory while it works on one in registers; 0: none.
// Bound    Memory: 2 x keys x head_dim elements a KV head, once. At short context, latency: after the wait one
//          round to L2 for the heads, one exchange in the cluster.
// Numbers  bf16 products, float32 sums and softmax (base 2), P rounded to bf16.
// Source   Dao et al. 2023, Flash-Decoding (the split); Milakov and Gimelshein 2018, arXiv:1805.02867.
#pragma once

#include <algorithm>
#include <type_traits>

#include "core/layers/cuda/attention_rows.cuh"
#include "core/layers/cuda/finish_head.cuh"

namespace qengine::cuda {

inline constexpr int kDecodeWarps = 4, kMostQueue = 2;

// What a warp has of a sequence of `len` keys: runs of 16, counted from run0, begin, begin + step, ... < stop.
struct DecodeShare {
  int from, run0, runs, active, begin, stop;
  bool newest;  // this block has the last run
  __device__ __forceinline__ DecodeShare(const Decode& d, int len, int team, int rank) {
    from = d.a.window > 0 ? max(0, len - d.a.window) : 0;
    run0 = from / 16, runs = max(0, (len + 15) / 16 - run0);
    const int teams = d.splits / d.cluster, step = d.cluster * kDecodeWarps;
    // A multiple of the warps for each team, so that all of them work; joining teams costs more than a second turn.
    const int least = d.cluster > 1 ? 2 * step : step;
    const int per = max(least, ((runs + teams - 1) / teams + step - 1) / step * step);
    active = max(1, (runs + per - 1) / per);
    begin = team * per + static_cast<int>(threadIdx.x) / 32 * d.cluster + rank;
    stop = min(runs, (team + 1) * per);
    newest = team == active - 1 && (runs + d.cluster - 1) % d.cluster == rank;
  }
};

// How many runs wait in shared memory, and where behind what the joins need (bytes).
struct DecodeQueue {
  int depth, at;
};

template <int D, KvType T, bool F>
__global__ void __launch_bounds__(kDecodeWarps * 32, D <= 128 ? 4 : 1) attention_decode_kernel(Decode d, DecodeQueue queue) {
  constexpr int kRow = D + 4;  // o, m, l: what a warp leaves of a row, aligned to 16 bytes
  constexpr int kN = D / 32;
  extern __shared__ __align__(16) float shared[];  // [warps][rows][kRow], then [cluster][rows][D / cluster + 4]; then the queues of the warps
  __shared__ bool last;
  const Attention& a = d.a;
  const int cluster = d.cluster, team = blockIdx.z / d.n_seqs, item = blockIdx.z - team * d.n_seqs, rank = blockIdx.x, step = cluster * kDecodeWarps;
  if (cluster > 1) cluster_arrive_relaxed();
  if constexpr (!F) pdl_begin();
  const int group = a.heads / a.kv_heads, row_tiles = (group + kDecodeRows - 1) / kDecodeRows;
  const int kv_head = blockIdx.y / row_tiles, first = blockIdx.y % row_tiles * kDecodeRows, rows = min(kDecodeRows, group - first);
  const int seq = d.seqs ? d.seqs[item] : item;
  int len = F ? load_relaxed(a.seq_len + seq) : a.seq_len[seq];
  const int row = a.cu_q[seq], warp = threadIdx.x / 32;
  DecodeShare share(d, len, team, rank);

  using Warp = WarpRows<D, T>;
  Warp w;
  w.begin();
  const Keys keys = keys_of(a, seq, kv_head);
  const float scale2 = a.scale * 1.4426950408889634f * (a.pool.k_scale ? a.pool.k_scale[kv_head] : 1.0f);
  const float v_scale = a.pool.v_scale ? a.pool.v_scale[kv_head] : 1.0f;
  const char* place = reinterpret_cast<const char*>(shared) + queue.at + warp * queue.depth * Warp::kRunBytes;  // of this warp's queue
  const auto ask = [&](int r, int slot) {
    if (r < share.stop) w.ask(shared_address(place) + slot * Warp::kRunBytes, keys, (share.run0 + r) * 16);
    commit_copies();  // a group for every slot, so that counting them is counting slots
  };
  const auto ask_first = [&] {
#pragma unroll 1
    for (int i = 0; i < queue.depth; ++i) ask(share.begin + i * step, i);
  };
  const __nv_bfloat16* q = a.q + row * a.q_stride + static_cast<std::int64_t>(kv_head * group + first) * D;
  __shared__ __align__(16) __nv_bfloat16 finished[F ? kDecodeRows * D : 1];
  __shared__ __align__(16) unsigned char fresh[2][F ? D * (T == KvType::kBf16 ? 2 : 1) : 1];  // the new key and value
  const int per = D / cluster;  // a block's dimensions
  const unsigned by_per = (1u << 20) / static_cast<unsigned>(per) + 1;      // quotients of small numbers by it
  if constexpr (F) {
    const QkvFinish& f = d.finish;
    if (team >= share.active && team >= DecodeShare(d, len + 1, team, rank).active) {  // others wait for the kernel before
      if (cluster > 1) cluster_wait();
      return;
    }
    ask_first();
    float q_norm[kN], k_norm[kN];
    load_norm<D>(f, f.q_norm, q_norm);
    load_norm<D>(f, f.k_norm, k_norm);
    Rotation<kN> rotation;
    if (f.cos_sin) rotation.load(f, max(0, load_relaxed(f.position + row)));
    pdl_wait();
    pdl_launch();
    const int len_now = a.seq_len[seq], position = f.cos_sin ? f.position[row] : -1;
    const std::int64_t slot = f.slot[row];
    for (;;) {
      const int heads = rows + 2 * share.newest;
      for (int h = warp; h < heads; h += 2 * kDecodeWarps) {
        float v[2][kN];
        const auto head_of = [&](int i) { return i < rows ? kv_head * group + first + i : a.heads + (i - rows) * a.kv_heads + kv_head; };
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if (const int mine = h + i * kDecodeWarps; mine < heads) load_head<D>(f, row, head_of(mine), v[i]);
        if (f.cos_sin && rotation.position != position) rotation.load(f, position);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int mine = h + i * kDecodeWarps;
          if (mine >= heads) continue;
          if (mine < rows) {
            finish_head<D>(f, f.q_norm != nullptr, q_norm, rotation, shared + warp * D, v[i]);
#pragma unroll
            for (int j = 0; j < kN; ++j) finished[mine * D + j * 32 + threadIdx.x % 32] = __float2bfloat16(v[i][j]);
          } else {
            if (mine == rows) finish_head<D>(f, f.k_norm != nullptr, k_norm, rotation, shared + warp * D, v[i]);
            append_head<D, T>(f, slot, head_of(mine), v[i], fresh[mine - rows]);
          }
        }
      }
      if (len_now == len) break;
      len = len_now;
      share = DecodeShare(d, len, team, rank);
      wait_copies<0>();
      ask_first();
    }
    __syncthreads();
    q = finished;
  } else {
    ask_first();
  }
  if (team >= share.active) {
    if (cluster > 1) cluster_wait();
    return;
  }
  w.load_q(w.g < rows ? q + w.g * D : nullptr);
  for (int r = share.begin, slot = 0; r < share.stop; r += step) {
    const int key = (share.run0 + r) * 16, end = F ? len - 1 : len;
    const char* here = place + slot * Warp::kRunBytes;
    typename Warp::Run run;
    if (queue.depth == 0) {
      w.load_keys(run, keys, key);
    } else {
      if (queue.depth == 1) wait_copies<0>();
      else wait_copies<kMostQueue - 1>();
      w.take_keys(run, here);
    }
    const bool newest = F && key + 16 >= len;
    if (newest) w.replace_key(run, len - 1 - key, fresh[0]);
    w.multiply(run, key, share.from, len, scale2, [&] {
      if (queue.depth == 0) {
        w.load_values(run, keys, key, end);
      } else {
        w.take_values(run, here, key, end);
        ask(r + queue.depth * step, slot);
        if (++slot == queue.depth) slot = 0;
      }
      if (newest) w.replace_value(run, len - 1 - key, fresh[1]);
    });
  }

  // The warps of this block.
  w.template store<kRow>(shared + warp * rows * kRow, rows);
  __syncthreads();
  if (cluster > 1) cluster_wait();  // the others have begun
  const std::int64_t head0 = static_cast<std::int64_t>(kv_head * group + first);
  const int active = share.active;
  // [row][team][rank]: m, l, o
  const int size = per + 2;
  float* partial = d.partial + (static_cast<std::int64_t>(item) * a.heads + head0) * d.splits * (D + 2);
  const auto left_by = [&](int r, int k) { return partial + static_cast<std::int64_t>(r) * d.splits * (D + 2) + (k * cluster + rank) * size; };
  const auto leave = [&](int r, int dim, float most, float sum, float o) {  // dim: of this block's
    if (active == 1) {
      a.out[row * a.out_stride + (head0 + r) * D + rank * per + dim] = __float2bfloat16(sum > 0 ? o / sum * v_scale : 0.0f);
    } else {
      float* to = left_by(r, team);
      to[2 + dim] = o;
      if (dim == 0) to[0] = most, to[1] = sum;
    }
  };
  // What each of n, at most kMost, counts when rows are joined whose m and l are (at[k * apart], at[k * apart + 1]).
  const auto weigh = [](auto& f, const float* at, int n, int apart, float& most, float& sum) {
    constexpr int kMost = sizeof f / sizeof f[0];
    float l[kMost];
    most = -INFINITY, sum = 0;
#pragma unroll
    for (int k = 0; k < kMost; ++k) {
      f[k] = -INFINITY, l[k] = 0;
      if (k < n) f[k] = at[k * apart], l[k] = at[k * apart + 1];
      most = fmaxf(most, f[k]);
    }
#pragma unroll
    for (int k = 0; k < kMost; ++k) {
      f[k] = most == -INFINITY ? 0.0f : exp2f(f[k] - most);
      sum += f[k] * l[k];
    }
  };
  // [rank of the sender][rows]: o, m, l
  const int received_size = per + 4;
  float* received = shared + kDecodeWarps * rows * kRow;
  for (int i = threadIdx.x; i < rows * (D / 4); i += kDecodeWarps * 32) {
    const int r = i / (D / 4), dim = i % (D / 4) * 4;
    const float* at = shared + r * kRow;
    float f[kDecodeWarps], most, sum;
    weigh(f, at + D, kDecodeWarps, rows * kRow, most, sum);
    float4 o{};
#pragma unroll
    for (int k = 0; k < kDecodeWarps; ++k) {
      const float4 x = *reinterpret_cast<const float4*>(at + k * rows * kRow + dim);
      o.x += f[k] * x.x, o.y += f[k] * x.y, o.z += f[k] * x.z, o.w += f[k] * x.w;
    }
    if (cluster == 1) {
      leave(r, dim, most, sum, o.x), leave(r, dim + 1, most, sum, o.y), leave(r, dim + 2, most, sum, o.z), leave(r, dim + 3, most, sum, o.w);
      continue;
    }
    const int owner = static_cast<int>(static_cast<unsigned>(dim) * by_per >> 20), part = dim - owner * per;
    float* to = received + (rank * rows + r) * received_size;
    store_in_cluster(to + part, static_cast<unsigned>(owner), o);
    if (part == 0) store_in_cluster(to + per, static_cast<unsigned>(owner), most), store_in_cluster(to + per + 1, static_cast<unsigned>(owner), sum);
  }
  if (cluster > 1) {
    __syncwarp();
    cluster_arrive();
    cluster_wait();
    for (int i = threadIdx.x; i < rows * per; i += kDecodeWarps * 32) {
      const int r = static_cast<int>(static_cast<unsigned>(i) * by_per >> 20), dim = i - r * per;
      const float* at = received + r * received_size;
      float f[kMostCluster], most, sum, o = 0;
      weigh(f, at + per, cluster, rows * received_size, most, sum);
#pragma unroll
      for (int k = 0; k < kMostCluster; ++k)
        if (k < cluster) o += f[k] * at[k * rows * received_size + dim];
      leave(r, dim, most, sum, o);
    }
  }
  if (active == 1) return;

  // The clusters of this head: blocks of one rank, which have the same dimensions.
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    std::uint32_t* counter = d.counters + (static_cast<std::int64_t>(item) * gridDim.y + blockIdx.y) * cluster + rank;
    last = atomicInc(counter, static_cast<unsigned>(active - 1)) == static_cast<unsigned>(active - 1);
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  // What each team's share counts, once for all dimensions; then sums whose loads do not wait for each other.
  float *weight = shared, *sums = shared + rows * active;  // [rows, active]
  for (int i = threadIdx.x; i < rows * active; i += blockDim.x) {
    const float* at = left_by(i / active, i % active);
    weight[i] = __ldcg(at);
    sums[i] = __ldcg(at + 1);
  }
  __syncthreads();
  for (int r = warp; r < rows; r += kDecodeWarps) {
    float most = -INFINITY, sum = 0;
    for (int k = 0; k < active; ++k) most = fmaxf(most, weight[r * active + k]);
    for (int k = 0; k < active; ++k) sum += most == -INFINITY ? 0.0f : exp2f(weight[r * active + k] - most) * sums[r * active + k];
    __syncwarp();
    for (int k = threadIdx.x % 32; k < active; k += 32) weight[r * active + k] = sum > 0 ? exp2f(weight[r * active + k] - most) / sum * v_scale : 0.0f;
  }
  __syncthreads();
  const int apart = cluster * size;
  for (int i = threadIdx.x; i < rows * per; i += kDecodeWarps * 32) {
    const int r = i / per, dim = i - r * per;
    const float* at = left_by(r, 0) + 2 + dim;
    float o = 0;
    int k = 0;
    for (; k + 8 <= active; k += 8) {
      float x[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) x[j] = __ldcg(at + (k + j) * apart);
#pragma unroll
      for (int j = 0; j < 8; ++j) o += weight[r * active + k + j] * x[j];
    }
    float x[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] = k + j < active ? __ldcg(at + (k + j) * apart) : 0.0f;
#pragma unroll
    for (int j = 0; j < 8; ++j)
      if (k + j < active) o += weight[r * active + k + j] * x[j];
    a.out[row * a.out_stride + (head0 + r) * D + rank * per + dim] = __float2bfloat16(o);
  }
}

// Dynamic shared memory that a block of a kernel may have: at most, and so that two or four fit a multiprocessor.
struct DecodeShared {
  cudaError_t error = cudaSuccess;
  std::size_t block = 0, half = 0, quarter = 0;
};
inline DecodeShared shared_of(const void* kernel) {
  constexpr int kReserved = 1024;  // of every block, by the runtime
  DecodeShared l;
  int device = 0, most = 0, all = 0;
  cudaFuncAttributes attributes{};
  l.error = cudaGetDevice(&device);
  if (l.error == cudaSuccess) l.error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (l.error == cudaSuccess) l.error = cudaDeviceGetAttribute(&all, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
  if (l.error == cudaSuccess) l.error = cudaFuncGetAttributes(&attributes, kernel);
  if (l.error != cudaSuccess) return l;
  const int fixed = static_cast<int>(attributes.sharedSizeBytes);
  l.block = static_cast<std::size_t>(std::max(0, most - fixed));
  l.half = static_cast<std::size_t>(std::max(0, all / 2 - kReserved - fixed));
  l.quarter = static_cast<std::size_t>(std::max(0, all / 4 - kReserved - fixed));
  return l;
}

template <int D, KvType T, bool F>
cudaError_t decode_as(const Decode& d, At at) {
  const int group = d.a.heads / d.a.kv_heads, row_tiles = (group + kDecodeRows - 1) / kDecodeRows;
  const std::size_t rows = static_cast<std::size_t>(std::min(group, kDecodeRows));
  if (d.cluster < 1 || d.cluster > kMostCluster || d.splits % d.cluster || D % (4 * d.cluster)) return cudaErrorInvalidValue;
  // The warps' shares and those of other blocks; later in the same place what each cluster's share counts; before
  // that a head for each warp.
  const std::size_t warps = kDecodeWarps * rows * (D + 4), blocks = rows * static_cast<std::size_t>(D + 4 * d.cluster);
  const std::size_t joins = sizeof(float) * std::max({warps + blocks, 2 * rows * static_cast<std::size_t>(d.splits / d.cluster), static_cast<std::size_t>(kDecodeWarps * D)});
  static const DecodeShared limits = [] {
    DecodeShared l = shared_of(reinterpret_cast<const void*>(attention_decode_kernel<D, T, F>));
    if (l.error == cudaSuccess) l.error = cudaFuncSetAttribute(attention_decode_kernel<D, T, F>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(l.block));
    if (l.error == cudaSuccess) l.error = beside_others(attention_decode_kernel<D, T, F>);
    return l;
  }();
  if (limits.error != cudaSuccess) return limits.error;
  // More blocks a multiprocessor come before a long queue.
  const std::size_t at_byte = (joins + 15) / 16 * 16, slot = kDecodeWarps * static_cast<std::size_t>(WarpRows<D, T>::kRunBytes);
  const auto fit = [&](std::size_t room) { return room < at_byte ? 0 : std::min<std::size_t>(kMostQueue, (room - at_byte) / slot); };
  std::size_t depth = fit(limits.quarter);
  if (depth == 0) depth = fit(limits.half);
  if (depth == 0) depth = fit(limits.block);
  if (at_byte > limits.block) return cudaErrorInvalidValue;
  return launch_clusters(attention_decode_kernel<D, T, F>, d.cluster,
                         dim3(static_cast<unsigned>(d.cluster), static_cast<unsigned>(d.a.kv_heads * row_tiles), static_cast<unsigned>(d.splits / d.cluster * d.n_seqs)), dim3(kDecodeWarps * 32),
                         at_byte + depth * slot, at, d, DecodeQueue{static_cast<int>(depth), static_cast<int>(at_byte)});
}

}  // namespace qengine::cuda
