// CudaInputs: what a step tells the device besides the weights: ids, positions, slots, lengths, block
// tables. The arrays have fixed addresses, so a captured graph reads those of every later step.
//
// Filled in pinned memory, copied on the stream. Two sets of pinned memory: one is filled while the
// other may still be on its way.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <vector>

#include "core/device/gpu.hpp"
#include "core/engine/runner.hpp"
#include "core/layers/cuda/kernels.hpp"

namespace qengine {

class CudaInputs {
 public:
  struct Limits {
    std::int64_t rows = 0, seqs = 0, blocks_per_seq = 0, picks = 0;
    int block_size = 16, tile_tokens = 1;
  };
  CudaInputs(Gpu& gpu, const Limits& limits);
  ~CudaInputs();
  CudaInputs(const CudaInputs&) = delete;
  CudaInputs& operator=(const CudaInputs&) = delete;

  // Puts the spans into the arrays and enqueues their copy.
  void fill(std::span<const RunSpan> spans);
  // The same for one token a span, padded to `rows`, for a step that begins with cuda::advance(): what is copied is the state
  // before it. Every block that a span has goes along, also for positions to come.
  void fill_before(std::span<const RunSpan> spans, std::int64_t rows);
  // Blocks that spans got since fill_before(). REQUIRES: the same sequences in the same rows.
  void fill_new_blocks(std::span<const RunSpan> spans);
  cuda::Advance advance(std::int64_t rows) const;

  void fill_picks(std::span<const std::int32_t> rows);

  // Of the last fill().
  std::int64_t rows() const { return rows_; }
  int decodes() const { return decodes_; }  // spans of one token: single_seqs() names them
  int tiles() const { return tiles_; }      // of the others
  std::int64_t longest() const { return longest_; }

  const std::int32_t* ids() const { return at<std::int32_t>(ids_); }
  const std::int32_t* positions() const { return at<std::int32_t>(positions_); }
  const std::int64_t* slots() const { return at<std::int64_t>(slots_); }
  const std::int32_t* cu_q() const { return at<std::int32_t>(cu_q_); }
  const std::int32_t* seq_len() const { return at<std::int32_t>(seq_len_); }
  const std::int32_t* single_seqs() const { return at<std::int32_t>(singles_); }
  const cuda::Tile* tile_list() const { return at<cuda::Tile>(tile_list_); }
  std::int32_t* tokens() const { return const_cast<std::int32_t*>(at<std::int32_t>(tokens_)); }
  const std::int32_t* picks() const { return at<std::int32_t>(picks_); }
  const std::int32_t* block_table() const { return table_.get<std::int32_t>(); }
  std::int64_t table_stride() const { return limits_.blocks_per_seq; }

 private:
  template <class T>
  const T* at(std::uint64_t offset) const {
    return reinterpret_cast<const T*>(data_.get<char>() + offset);
  }
  struct Host {
    char* data = nullptr;    // as data_
    char* table = nullptr;   // [seqs, longest of the step]
    cudaEvent_t copied = nullptr;
  };
  Host& next();
  void copy_tables(Host& h, std::span<const RunSpan> spans, bool all);

  Gpu& gpu_;
  Limits limits_;
  std::uint64_t ids_, positions_, cu_q_, seq_len_, tokens_, singles_, tile_list_, slots_, bytes_, picks_, all_bytes_;
  DeviceBuffer data_, table_;
  Host hosts_[2];
  int turn_ = 0;
  char* host_picks_[2] = {};
  std::int64_t rows_ = 0, longest_ = 0;
  int decodes_ = 0, tiles_ = 0;
};

}  // namespace qengine
