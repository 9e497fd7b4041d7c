#include "core/engine/cuda_inputs.hpp"

#include <algorithm>

#include "core/base/checked.hpp"
#include "core/device/cuda_check.hpp"

namespace qengine {

CudaInputs::CudaInputs(Gpu& gpu, const Limits& l) : gpu_(gpu), limits_(l) {
  std::uint64_t end = 0;
  const auto place = [&](std::uint64_t bytes) {
    const std::uint64_t here = end;
    end = (end + bytes + 15) / 16 * 16;
    return here;
  };
  const auto rows = static_cast<std::uint64_t>(l.rows), seqs = static_cast<std::uint64_t>(l.seqs);
  slots_ = place(rows * 8);
  ids_ = place(rows * 4);
  positions_ = place(rows * 4);
  cu_q_ = place((seqs + 1) * 4);
  seq_len_ = place(seqs * 4);
  tokens_ = place(seqs * 4);
  singles_ = place(seqs * 4);
  tile_list_ = place((rows / static_cast<std::uint64_t>(l.tile_tokens) + seqs + 1) * sizeof(cuda::Tile));
  bytes_ = end;
  picks_ = place(static_cast<std::uint64_t>(l.picks) * 4);
  all_bytes_ = end;
  data_ = DeviceBuffer(gpu, all_bytes_, MemoryOwner::kWorkspace, "inputs of a step");
  table_ = DeviceBuffer(gpu, seqs * static_cast<std::uint64_t>(l.blocks_per_seq) * 4, MemoryOwner::kWorkspace, "block tables");
  gpu.zero(data_.get(), all_bytes_);
  gpu.zero(table_.get(), table_.bytes());
  for (int i = 0; i < 2; ++i) {
    void* p = nullptr;
    cuda_check(cudaMallocHost(&p, all_bytes_ + table_.bytes()), "taking pinned memory");
    hosts_[i].data = static_cast<char*>(p);
    hosts_[i].table = hosts_[i].data + all_bytes_;
    cuda_check(cudaEventCreateWithFlags(&hosts_[i].copied, cudaEventDisableTiming), "making an event");
    cuda_check(cudaMallocHost(&p, static_cast<std::uint64_t>(l.picks) * 4), "taking pinned memory");
    host_picks_[i] = static_cast<char*>(p);
  }
}

CudaInputs::~CudaInputs() {
  cudaStreamSynchronize(static_cast<cudaStream_t>(gpu_.stream()));
  for (Host& h : hosts_) {
    if (h.data) cudaFreeHost(h.data);
    if (h.copied) cudaEventDestroy(h.copied);
  }
  for (char* p : host_picks_)
    if (p) cudaFreeHost(p);
}

CudaInputs::Host& CudaInputs::next() {
  Host& h = hosts_[turn_ ^= 1];
  cuda_check(cudaEventSynchronize(h.copied), "an earlier step");
  return h;
}

void CudaInputs::fill(std::span<const RunSpan> spans) {
  Host& h = next();
  auto* slots = reinterpret_cast<std::int64_t*>(h.data + slots_);
  const auto ints = [&](std::uint64_t at) { return reinterpret_cast<std::int32_t*>(h.data + at); };
  std::int32_t *ids = ints(ids_), *positions = ints(positions_), *cu_q = ints(cu_q_), *seq_len = ints(seq_len_), *singles = ints(singles_);
  auto* tiles = reinterpret_cast<cuda::Tile*>(h.data + tile_list_);

  longest_ = 0;
  for (const RunSpan& s : spans) longest_ = std::max(longest_, s.first + std::ssize(s.tokens));
  std::int64_t row = 0;
  std::int32_t seq = 0;
  decodes_ = tiles_ = 0;
  for (const RunSpan& s : spans) {
    const std::int64_t n = std::ssize(s.tokens), len = s.first + n;
    cu_q[seq] = static_cast<std::int32_t>(row);
    seq_len[seq] = static_cast<std::int32_t>(len);
    for (std::int64_t i = 0; i < n; ++i, ++row) {
      const std::int64_t p = s.first + i;
      ids[row] = s.tokens[static_cast<std::size_t>(i)];
      positions[row] = static_cast<std::int32_t>(p);
      slots[row] = std::int64_t{s.blocks[static_cast<std::size_t>(p / limits_.block_size)]} * limits_.block_size + p % limits_.block_size;
    }
    if (n == 1) singles[decodes_++] = seq;
    else
      for (std::int64_t t = 0; t < n; t += limits_.tile_tokens) tiles[tiles_++] = {seq, static_cast<std::int32_t>(t)};
    ++seq;
  }
  // The tiles that see the most keys begin, so that the blocks end together.
  std::stable_sort(tiles, tiles + tiles_, [&](const cuda::Tile& a, const cuda::Tile& b) {
    const auto keys = [&](const cuda::Tile& t) { return spans[static_cast<std::size_t>(t.seq)].first + t.first; };
    return keys(a) > keys(b);
  });
  rows_ = row;
  cu_q[seq] = static_cast<std::int32_t>(row);

  const auto stream = static_cast<cudaStream_t>(gpu_.stream());
  cuda_check(cudaMemcpyAsync(data_.get(), h.data, bytes_, cudaMemcpyHostToDevice, stream), "the inputs of a step");
  copy_tables(h, spans, false);
  cuda_check(cudaEventRecord(h.copied, stream), "the inputs of a step");
}

// The blocks that the spans use; `all`: those that they have.
void CudaInputs::copy_tables(Host& h, std::span<const RunSpan> spans, bool all) {
  if (spans.empty()) return;
  const auto used = [&](const RunSpan& s) {
    return std::min<std::int64_t>(all ? std::ssize(s.blocks) : ceil_div(s.first + std::ssize(s.tokens), limits_.block_size), limits_.blocks_per_seq);
  };
  std::int64_t widest = 1;
  for (const RunSpan& s : spans) widest = std::max(widest, used(s));
  auto* table = reinterpret_cast<std::int32_t*>(h.table);
  for (const RunSpan& s : spans) {
    std::fill(std::copy_n(s.blocks.data(), used(s), table), table + widest, 0);
    table += widest;
  }
  const std::size_t row = static_cast<std::size_t>(widest) * 4;
  cuda_check(cudaMemcpy2DAsync(table_.get(), static_cast<std::size_t>(limits_.blocks_per_seq) * 4, h.table, row, row, spans.size(), cudaMemcpyHostToDevice, static_cast<cudaStream_t>(gpu_.stream())),
             "the block tables of a step");
}

void CudaInputs::fill_before(std::span<const RunSpan> spans, std::int64_t rows) {
  Host& h = next();
  const auto ints = [&](std::uint64_t at) { return reinterpret_cast<std::int32_t*>(h.data + at); };
  std::int32_t *positions = ints(positions_), *cu_q = ints(cu_q_), *seq_len = ints(seq_len_), *tokens = ints(tokens_);
  rows_ = std::ssize(spans);
  for (std::int64_t r = 0; r < rows; ++r) {
    const bool real = r < rows_;
    cu_q[r] = static_cast<std::int32_t>(r);
    tokens[r] = real ? spans[static_cast<std::size_t>(r)].tokens[0] : 0;
    positions[r] = real ? static_cast<std::int32_t>(spans[static_cast<std::size_t>(r)].first) - 1 : 0;
    seq_len[r] = real ? positions[r] + 1 : INT32_MIN / 2;
  }
  cu_q[rows] = static_cast<std::int32_t>(rows);
  const auto stream = static_cast<cudaStream_t>(gpu_.stream());
  cuda_check(cudaMemcpyAsync(data_.get<char>() + positions_, h.data + positions_, singles_ - positions_, cudaMemcpyHostToDevice, stream), "the inputs of a step");
  copy_tables(h, spans, true);
  cuda_check(cudaEventRecord(h.copied, stream), "the inputs of a step");
}

void CudaInputs::fill_new_blocks(std::span<const RunSpan> spans) {
  Host& h = next();
  copy_tables(h, spans, true);
  cuda_check(cudaEventRecord(h.copied, static_cast<cudaStream_t>(gpu_.stream())), "the block tables of a step");
}

cuda::Advance CudaInputs::advance(std::int64_t rows) const {
  const auto mutable_ints = [&](std::uint64_t at) { return reinterpret_cast<std::int32_t*>(data_.get<char>() + at); };
  return {.tokens = tokens(), .ids = mutable_ints(ids_), .positions = mutable_ints(positions_), .seq_len = mutable_ints(seq_len_), .slots = reinterpret_cast<std::int64_t*>(data_.get<char>() + slots_),
          .block_table = block_table(), .table_stride = limits_.blocks_per_seq, .block_tokens = limits_.block_size, .rows = static_cast<int>(rows)};
}

void CudaInputs::fill_picks(std::span<const std::int32_t> rows) {
  // The set that fill() used last: its copy went before, so this one's end means both ended.
  Host& h = hosts_[turn_];
  std::copy(rows.begin(), rows.end(), reinterpret_cast<std::int32_t*>(host_picks_[turn_]));
  const auto stream = static_cast<cudaStream_t>(gpu_.stream());
  cuda_check(cudaMemcpyAsync(data_.get<char>() + picks_, host_picks_[turn_], rows.size_bytes(), cudaMemcpyHostToDevice, stream), "the rows to choose from");
  cuda_check(cudaEventRecord(h.copied, stream), "the rows to choose from");
}

}  // namespace qengine
