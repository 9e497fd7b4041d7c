// qe/format_impl.hpp: makes the function table of a format. Heavy: include it where a format lives,
// nowhere else (format_ops.hpp says how).
#pragma once

#include <qe/cpu/cpuid.hpp>
#include <qe/cpu/kernels.hpp>
#include <qe/cpu/x86.hpp>
#include <qe/format_ops.hpp>

#include <atomic>

namespace qe {
namespace detail {

template <class F>
PartPlan plan_part(Io& io, const Part& part, const Range& range) {
  const typename F::Source s = F::bind(io, part);
  PartPlan plan;
  plan.layout = cpu::layout<F>(s, range.n, range.k);
  plan.map = cpu::column_map<F>(s, plan.layout);
  plan.activation = activation_of<F>(s);
  return plan;
}

template <class F>
PartPlan load_part(Io& io, const Part& part, const Range& range, const cpu::Layout& planned, std::byte* base) {
  typename F::Source s = F::bind(io, part);
  if constexpr (requires { F::prepare(s, part); }) F::prepare(s, part);
  PartPlan plan;
  plan.layout = cpu::layout<F>(s, range.n, range.k);
  if (plan.layout.bytes() != planned.bytes() || plan.layout.mapped != planned.mapped)
    throw Error(QE_E_INTERNAL, std::string(part.name()), "takes other bytes at load than in the plan");
  plan.map = cpu::column_map<F>(s, plan.layout);
  plan.activation = activation_of<F>(s);
  const cpu::Layout& l = plan.layout;
  // slices of panels: large enough to share a scratch, small enough to spread
  const std::int64_t slice = std::max<std::int64_t>(1, std::min<std::int64_t>(64, l.panels / 16));
  std::atomic<bool> cancelled{false};
  parallel_for((l.panels + slice - 1) / slice, [&](std::int64_t i) {
    if (cancelled.load(std::memory_order_relaxed)) return;
    if (host().cancelled && host().cancelled(host().self)) {
      cancelled = true;
      return;
    }
    std::vector<Code<F>> scratch;
    for (std::int64_t p = i * slice; p < std::min(l.panels, (i + 1) * slice); ++p) {
      const std::int64_t row = p * cpu::kRows;
      cpu::pack_panel<F>(s, l, plan.map, range.row + row, int(std::min<std::int64_t>(cpu::kRows, l.n - row)), range.k_begin,
                         cpu::panel_at(l, base, p), scratch);
    }
  });
  if (cancelled) throw Error(QE_E_CANCELLED, std::string(part.name()), "loading was cancelled");
  if constexpr (requires { F::done(s, part); }) F::done(s, part);
  return plan;
}

template <class F>
void run_part(const cpu::Job& job, cpu::Path path, cpu::Isa isa) {
#if QE_X86
  if (isa == cpu::Isa::avx512) return cpu::avx512::run<F>(job, path);
  if (isa == cpu::Isa::avx2) return cpu::avx2::run<F>(job, path);
#endif
  (void)isa;
  cpu::scalar::run<F>(job, path);
}

template <class F>
void dequant_part(const std::byte* base, std::int64_t panel, const cpu::Layout& l, std::int64_t block, std::int64_t blocks, float* out) {
  for (std::int64_t b = 0; b < blocks; ++b) cpu::dequant_block<F>(cpu::panel_at(l, base, panel), l, block + b, out + b * cpu::kBlock * cpu::kRows);
}

}  // namespace detail

template <class F>
const FormatOps& format_ops() {
  static_assert(Format<F>, "see qe/format.hpp: Planes, Meta, Source, value, code, meta");
  static constexpr FormatOps ops{F::Planes::bits, cpu::kFastPath<F>, &detail::plan_part<F>, &detail::load_part<F>, &detail::run_part<F>,
                                 &detail::dequant_part<F>};
  return ops;
}

}  // namespace qe

#define QE_FORMAT(F) template const qe::FormatOps& qe::format_ops<F>();
