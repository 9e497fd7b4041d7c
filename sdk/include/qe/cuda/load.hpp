// qe/cuda/load.hpp: a part of a checkpoint, packed on the host for a GPU.
#pragma once

#include <qe/cuda/kernels.hpp>
#include <qe/plugin.hpp>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

namespace qe::cuda::detail {

template <class F>
CodesPart codes_part(const typename F::Source& s) {
  CodesPart c{qe::detail::activation_of<F>(s)};
  if constexpr (requires { F::rows_per_scale(s); }) c.rows_per_scale = F::rows_per_scale(s);
  return c;
}

template <class F>
PartPlan plan(Io& io, const Part& part, const Range& range) {
  const typename F::Source s = F::bind(io, part);
  const Layout l = layout<F>(s, range.n, range.k);
  return {l, column_map<F>(s, l), codes_part<F>(s)};
}

template <class F>
PartPlan load(Io& io, const Part& part, const Range& range, const Layout& planned, std::int64_t slice_bytes, const StripSink& sink) {
  typename F::Source s = F::bind(io, part);
  if constexpr (requires { F::prepare(s, part); }) F::prepare(s, part);
  const Layout l = layout<F>(s, range.n, range.k);
  if (l.strips != planned.strips || l.strip_bytes() != planned.strip_bytes() || !l.same_columns(planned))
    throw Error(QE_E_INTERNAL, std::string(part.name()), "takes other bytes at load than in the plan");
  ColumnMap map = column_map<F>(s, l);
  const std::int64_t slice = std::clamp<std::int64_t>(slice_bytes / std::max<std::int64_t>(1, l.strip_bytes()), 1, std::max<std::int64_t>(1, l.strips));
  std::vector<std::byte> units(std::size_t(slice * l.strip_bytes()));
  std::vector<float> factors(l.row ? std::size_t(slice * kStrip) : 0);
  for (std::int64_t first = 0; first < l.strips; first += slice) {
    const std::int64_t count = std::min(slice, l.strips - first);
    std::fill(factors.begin(), factors.end(), 0.0f);
    std::atomic<bool> cancelled{false};
    parallel_for(count, [&](std::int64_t i) {
      if (cancelled.load(std::memory_order_relaxed)) return;
      if (host().cancelled && host().cancelled(host().self)) {
        cancelled = true;
        return;
      }
      thread_local std::vector<Code<F>> scratch;
      const std::int64_t row = (first + i) * kStrip;
      pack_strip<F>(s, l, map, range.row + row, int(std::min<std::int64_t>(kStrip, l.n - row)), range.k_begin, units.data() + i * l.strip_bytes(),
                    l.row ? factors.data() + i * kStrip : nullptr, scratch);
    });
    if (cancelled) throw Error(QE_E_CANCELLED, std::string(part.name()), "loading was cancelled");
    sink(first, count, units.data(), l.row ? factors.data() : nullptr);
  }
  if constexpr (requires { F::done(s, part); }) F::done(s, part);
  return {l, std::move(map), codes_part<F>(s)};
}

}  // namespace qe::cuda::detail
