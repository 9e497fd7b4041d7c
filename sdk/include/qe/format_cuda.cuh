// qe/format_cuda.cuh: makes the CUDA side of formats. A plugin has a small .cu file of one or several:
//
//   #include <qe/format_cuda.cuh>
//   #include "format.hpp"
//   QE_FORMAT_CUDA(MyFormat)
//
// Nothing of the format is written again: how codes are decoded follows from Planes, value and kWide, what a
// group carries from Meta. `value`, `weight` and `row_factor` must be constexpr.
#pragma once

#include <qe/cuda/codes.cuh>
#include <qe/cuda/kernels.hpp>
#include <qe/cuda/load.hpp>
#include <qe/cuda/stream_gemm.cuh>
#include <qe/cuda/unpack.cuh>
#include <qe/cuda/wide_gemm.cuh>

#include <cuda_runtime.h>

namespace qe::cuda {
namespace detail {

// Warps of a block: as many as keep two blocks on a multiprocessor, with registers and a ring for each.
template <class F, int Run, int Tiles>
inline constexpr int kWarpsOf = Tiles == kWideTokens / 8 ? kWideWarps : Tiles > 1 || kUnitBytes<F, Run> >= 2048 || held_units<F, Run, Tiles>() ? 8 : 12;

template <class F, int Run, int Tiles>
auto kernel_of() {
  using Fn = void (*)(const StreamArgs, const StreamShared, const StreamTable<F>);
  if constexpr (Tiles == kWideTokens / 8) return static_cast<Fn>(wide_gemm<F, Run>);
  else return static_cast<Fn>(stream_gemm<F, Run, Tiles, kWarpsOf<F, Run, Tiles>, 2>);
}

inline const char* problem(cudaError_t e) { return e == cudaSuccess ? nullptr : cudaGetErrorString(e); }

// f(Int<Run>{}, Int<Tiles>{}) for the kernel asked for; false when there is none.
template <class F, class Body>
bool with_kernel(int tiles, int run, Body&& body) {
  bool found = false;
  const auto one = [&](auto r, auto t) {
    constexpr int kRun = decltype(r)::value, kTiles = decltype(t)::value;
    if constexpr (has_run<F, kRun>())
      if (run == kRun && tiles == kTiles) body(r, t), found = true;
  };
  const auto all = [&](auto r) { one(r, Int<1>{}), one(r, Int<2>{}), one(r, Int<kWideTokens / 8>{}); };
  all(Int<0>{}), all(Int<16>{}), all(Int<32>{}), all(Int<128>{});
  return found;
}

template <class F>
bool describe(int tiles, int run, Kernel* out) {
  return with_kernel<F>(tiles, run, [&](auto r, auto t) {
    constexpr int kRun = decltype(r)::value, kTiles = decltype(t)::value;
    *out = {kTiles, kWarpsOf<F, kRun, kTiles>, kRun, kUnitBytes<F, kRun>, true, 0, held_units<F, kRun, kTiles>()};
  });
}

template <class F>
const char* stream(const Kernel& k, const Work& w, const StreamArgs& a, qe_stream stream) {
  cudaError_t error = cudaErrorInvalidValue;
  with_kernel<F>(k.tiles, k.run, [&](auto r, auto t) {
    constexpr int kRun = decltype(r)::value, kTiles = decltype(t)::value, kWarps = kWarpsOf<F, kRun, kTiles>;
    StreamTable<F> values{};
    if constexpr (Decode<F>::kTable)
      for (int i = 0; i < Decode<F>::kTableSize; ++i) values.v[i] = std::uint16_t(Decode<F>::table_bits(i));
    cudaLaunchConfig_t c{};
    c.gridDim = dim3(unsigned(w.blocks));
    c.blockDim = dim3(kWarps * 32);
    c.dynamicSmemBytes = w.shared;
    c.stream = static_cast<cudaStream_t>(stream);
    cudaLaunchAttribute at[2];
    unsigned n = 0;
    if (a.pdl) {
      at[n].id = cudaLaunchAttributeProgrammaticStreamSerialization;
      at[n++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (w.slices > 1) {
      at[n].id = cudaLaunchAttributeClusterDimension;
      at[n].val.clusterDim.x = unsigned(w.slices);
      at[n].val.clusterDim.y = at[n].val.clusterDim.z = 1;
      ++n;
    }
    c.attrs = at;
    c.numAttrs = n;
    const StreamShared shared{std::uint32_t(w.tokens_at), std::uint32_t(w.tiles_at), std::uint32_t(w.peers_at), std::uint32_t(w.rows_at),
                              std::uint32_t(w.squares_at)};
    error = cudaLaunchKernelEx(&c, kernel_of<F, kRun, kTiles>(), a, shared, values);
  });
  return problem(error);
}

template <class F>
const char* unpack(const UnpackArgs& a, qe_stream stream) {
  ValueTable<F> values{};
  if constexpr (kNeedsTable<F>)
    for (std::uint32_t i = 0; i < (1u << F::Planes::bits); ++i) values.v[i] = F::value(i);
  const std::int64_t items = (a.ids ? a.rows : ceil_div(a.rows, 16) + 2 * a.parts) * a.width;
  cudaLaunchConfig_t c{};
  c.gridDim = dim3(unsigned(std::min<std::int64_t>(ceil_div(items, kUnpackWarps<F>), 4096)));
  c.blockDim = dim3(kUnpackWarps<F> * 32);
  c.stream = static_cast<cudaStream_t>(stream);
  cudaLaunchAttribute at[1];
  at[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  at[0].val.programmaticStreamSerializationAllowed = 1;
  c.attrs = at;
  c.numAttrs = a.pdl ? 1 : 0;
  return problem(cudaLaunchKernelEx(&c, static_cast<void (*)(const UnpackArgs, const ValueTable<F>)>(unpack_rows<F>), a, values));
}

template <class F>
const char* prepare(int device) {
  cudaError_t error = cudaSetDevice(device);
  int shared = 0;
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  const auto one = [&](auto r, auto t) {
    with_kernel<F>(decltype(t)::value, decltype(r)::value, [&](auto run, auto tiles) {
      constexpr int kRun = decltype(run)::value, kTiles = decltype(tiles)::value;
      const auto f = kernel_of<F, kRun, kTiles>();
      cudaFuncAttributes now{};
      if (error == cudaSuccess) error = cudaFuncGetAttributes(&now, f);
      if (error == cudaSuccess) error = cudaFuncSetAttribute(f, cudaFuncAttributeMaxDynamicSharedMemorySize, shared - int(now.sharedSizeBytes));
      if (error == cudaSuccess) error = cudaFuncSetAttribute(f, cudaFuncAttributePreferredSharedMemoryCarveout, 100);
    });
  };
  const auto all = [&](auto r) { one(r, Int<1>{}), one(r, Int<2>{}), one(r, Int<kWideTokens / 8>{}); };
  all(Int<0>{}), all(Int<16>{}), all(Int<32>{}), all(Int<128>{});
  return problem(error);
}

// Whether codes are E4M3 with a scale that the host's FP8 product knows.
template <class F>
constexpr bool has_codes() {
  using M = typename F::Meta;
  if constexpr (kDecoding<F> != Decoding::e4m3 || F::Planes::kCount != 1 || HasWeight<F>) return false;
  else if constexpr (M::kBytes == 0) return HasRowScale<F> && !HasRowFactor<F>;
  else return std::is_same_v<M, meta::Shared<meta::ScaleF32>> && !HasRowScale<F>;
}

template <bool kBlocks>
const char* quantize(const QuantizeArgs& a, qe_stream stream) {
  cudaLaunchConfig_t c{};
  c.gridDim = dim3(unsigned(kBlocks ? ceil_div(ceil_div(a.k, 256) * a.m, kQuantizeThreads / 32) : a.m));
  c.blockDim = dim3(kQuantizeThreads);
  c.stream = static_cast<cudaStream_t>(stream);
  return problem(cudaLaunchKernelEx(&c, quantize_tokens<kBlocks>, a));
}

template <bool kBlocks>
const char* codes(const CodesArgs& a, qe_stream stream) {
  cudaLaunchConfig_t c{};
  c.gridDim = dim3(unsigned(std::min<std::int64_t>(ceil_div(a.rows / kStrip * a.width, kCodesWarps), 4096)));
  c.blockDim = dim3(kCodesWarps * 32);
  c.stream = static_cast<cudaStream_t>(stream);
  return problem(cudaLaunchKernelEx(&c, unpack_codes<kBlocks>, a));
}

}  // namespace detail

template <class F>
const Kernels& kernels() {
  static_assert(Format<F>, "see qe/format.hpp: Planes, Meta, Source, value, code, meta");
  static constexpr Kernels table = [] {
    Kernels t{&detail::plan<F>, &detail::load<F>, &detail::describe<F>, &detail::stream<F>, &detail::unpack<F>, &detail::prepare<F>};
    if constexpr (detail::has_codes<F>()) t.quantize = &detail::quantize<!HasRowScale<F>>, t.codes = &detail::codes<!HasRowScale<F>>;
    return t;
  }();
  return table;
}

}  // namespace qe::cuda

#define QE_FORMAT_CUDA(F) template const qe::cuda::Kernels& qe::cuda::kernels<F>();
