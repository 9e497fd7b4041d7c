// qe/cuda/kernels.hpp: one format on GPUs behind a table of functions. The table is made by QE_FORMAT_CUDA in a .cu
// file (qe/format_cuda.cuh); what uses it needs no CUDA.
#pragma once

#include <qe/cuda/codes.hpp>
#include <qe/cuda/container.hpp>
#include <qe/cuda/work.hpp>
#include <qe/format_ops.hpp>

#include <cstdint>
#include <functional>

namespace qe::cuda {

struct PartPlan {
  Layout layout;
  ColumnMap map;
  CodesPart codes;
};
// Gets strips [first, first + strips), packed, and their row factors (16 a strip; null when there are none).
using StripSink = std::function<void(std::int64_t first, std::int64_t strips, const std::byte* units, const float* factors)>;

struct Kernels {
  // [any] From bind alone; the map is known as far as the data is.
  PartPlan (*plan)(Io&, const Part&, const Range&);
  // [load] Packs on the host; slices of at most `slice` bytes (or one strip) go to the sink in order.
  PartPlan (*load)(Io&, const Part&, const Range&, const Layout& planned, std::int64_t slice, const StripSink&);
  // [any] What the stream kernel for up to 8 * tiles tokens and records of `run` columns is like; false: there is none.
  bool (*describe)(int tiles, int run, Kernel* out);
  // [step] nullptr, or what went wrong as the runtime says it.
  const char* (*stream)(const Kernel&, const Work&, const StreamArgs&, qe_stream);
  const char* (*unpack)(const UnpackArgs&, qe_stream);
  // [load] Before the first stream: attributes of kernels, so that capture meets nothing lazy.
  const char* (*prepare)(int device);
  // [step] Products in FP8 (codes.hpp); null: the format has none.
  const char* (*quantize)(const QuantizeArgs&, qe_stream) = nullptr;
  const char* (*codes)(const CodesArgs&, qe_stream) = nullptr;
};

template <class F>
const Kernels& kernels();

}  // namespace qe::cuda
