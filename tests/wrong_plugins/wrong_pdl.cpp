// A plugin with CUDA kernels that keeps the contract, and one way each of breaking what programmatic launches promise.
// tests/core/conformance/pdl_test.cpp names the check that must catch it.
#include <qe/stream_linear.hpp>

#include "format.hpp"
#include "wrong_pdl.hpp"

namespace {

struct Right : qe::Linear<Right, Nibbles> {
  static constexpr qe::Row kRows[] = {{QE_CPU, 0, 0, 1}, {QE_CUDA, 80, 0, 2}};
  static constexpr const char *kScheme = "nibbles", *kQuantMethod = "wrong";
  static int detect(const qe_model& m, qe::Reason& why) {
    const std::string method = qe::Config(m.cfg).str("quant_method", "absent");
    why("quant_method is %s; this plugin reads wrong", method.c_str());
    return method == "wrong" ? 1000 : 0;
  }
  static qe::Claim check(const qe_model&, const qe_layer& l, qe::Reason& why) {
    if (l.method && *l.method && std::string_view(l.method) != kScheme) return why("scheme %s; supported: nibbles", l.method), qe::Claim::no;
    if (l.k % 32) return why("%lld inputs; must be a multiple of 32", static_cast<long long>(l.k)), qe::Claim::no;
    return qe::Claim::native;
  }
  static bool on_gpu(qe_linear x) { return of(x).gpu != nullptr; }
};

bool fault(const char* name) { return qe_fault_is(name) != 0; }

qe_status plan(const qe_device* d, const qe_model* m, const qe_layer* l, qe_plan* out, qe_error* e) noexcept {
  const qe_status s = Right::plan(d, m, l, out, e);
  if (s == QE_OK && fault("programmatic undeclared"))
    for (int i = 0; i < out->n_regimes; ++i) out->regime[i].flags &= ~std::uint32_t(QE_PDL_SAFE);
  return s;
}

qe_status run(qe_linear x, const qe_run* r, qe_error* e) noexcept {
  if (!Right::on_gpu(x) || r->m <= 0) return Right::run(x, r, e);
  const bool asked = (r->flags & QE_RUN_PDL) != 0;
  const auto done = [&](const char* problem) { return problem ? qe::guard(e, [&] { throw qe::Error(QE_E_DEVICE, {}, problem); }) : QE_OK; };
  qe_run mine = *r;
  qe_status s = QE_OK;
  if (fault("programmatic unasked")) mine.flags |= QE_RUN_PDL;
  if (fault("never programmatic")) mine.flags &= ~std::uint32_t(QE_RUN_PDL);
  const std::int64_t words = r->m * r->in.dim[1];
  if (fault("reads before the wait") && words <= wrong::kMostStaged) s = done(wrong::stage_early(r->in.data, words, asked, r->stream, &mine.in.data));
  // Not with a residual, which lies in the outputs: it is left there, and added once.
  if (fault("clears before the wait") && r->n_after == 0) s = done(wrong::clear_early(r->out.data, std::uint64_t(r->m * r->out.dim[1] * 2), asked, r->stream));
  if (fault("idles when programmatic") && asked) s = done(wrong::idle(20, asked, r->stream));
  if (s == QE_OK) s = Right::run(x, &mine, e);
  if (s == QE_OK && fault("ends before the others") && r->n_after == 0) s = done(wrong::end_early(asked, r->stream));
  if (s == QE_OK && fault("other bits when programmatic")) s = done(wrong::flip(r->out.data, asked ? 1 : 0, r->stream));
  return s;
}

const void* extension(const char* id) noexcept {
  if (std::string_view(id) != "qe.weight/1") return nullptr;
  static const qe_weight_v1 table{sizeof(qe_weight_v1), 0, plan, Right::tensors, Right::load, Right::warmup, run, Right::dequant, Right::rows, Right::bytes, Right::destroy};
  return &table;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const qe_plugin* qe_plugin_query(uint32_t host_major, uint32_t) {
  if (host_major != QE_ABI_MAJOR) return nullptr;
  static constexpr qe::About about{.id = "test.wrong", .name = "wrong", .version = "0.1.0", .vendor = "Nobody", .summary = "breaks one rule"};
  static qe_plugin p;
  p = *qe::Descriptor<Right>::get(about);
  p.extension = extension;
  return &p;
}
