// qe/format_ops.hpp: one format behind a table of functions, so that a plugin of many formats
// compiles each in a file of its own.
//
//   q4_0.cpp    #include <qe/format_impl.hpp>      and at its end     QE_FORMAT(Q4_0)
//   plugin.cpp  #include <qe/stream_linear.hpp>    sees only declarations
#pragma once

#include <qe/activation.hpp>
#include <qe/cpu/container.hpp>
#include <qe/plugin.hpp>

#include <cstdint>

namespace qe {

namespace cpu {
struct Job;
enum class Path;
enum class Isa : int;
}  // namespace cpu

// This rank's share of a part.
struct Range {
  std::int64_t row = 0, n = 0;  // output rows [row, row + n)
  std::int64_t k_begin = 0, k = 0;
};

struct PartPlan {
  cpu::Layout layout;
  cpu::ColumnMap map;
  Activation activation;
};

struct FormatOps {
  int bits;
  cpu::Path fast_path;
  // [any] From bind alone; the map and the activation are known as far as the data is.
  PartPlan (*plan)(Io&, const Part&, const Range&);
  // [load] Fills layout.bytes() at `base`.
  PartPlan (*load)(Io&, const Part&, const Range&, const cpu::Layout& planned, std::byte* base);
  // [step] Panels [job.begin, job.end) times job.in.
  void (*run)(const cpu::Job&, cpu::Path, cpu::Isa);
  // [step] Exact weights of `blocks` blocks of a panel, out [32 * blocks][8].
  void (*dequant)(const std::byte* base, std::int64_t panel, const cpu::Layout&, std::int64_t block, std::int64_t blocks, float* out);
};

template <class F>
const FormatOps& format_ops();

namespace detail {
template <class F>
Activation activation_of(const typename F::Source& s) {
  if constexpr (requires { F::activation(s); }) return F::activation(s);
  else return {};
}
}  // namespace detail

}  // namespace qe
