#include "core/conformance/gpu_layer.hpp"

#include <algorithm>

#ifdef QE_HAVE_CUDA
#include <qe/numbers.hpp>

#include "core/device/cuda_check.hpp"
#endif

namespace qengine::conformance {

std::unique_ptr<Session> session_on_gpu(const Subject& s) {
  auto session = weight_session(s);
  bool row = false;
  for (std::uint32_t i = 0; i < session->plugin->n_methods; ++i)
    for (std::uint32_t r = 0; r < session->plugin->methods[i]->n_rows; ++r) row |= session->plugin->methods[i]->rows[r]->kind == QE_CUDA;
  if (!row) not_applicable("no method has a CUDA row");
  const GpuList& list = list_gpus();
  if (list.gpus.empty()) not_applicable("no CUDA device: %s", list.why.c_str());
  const GpuInfo& gpu = list.gpus.front();
  for (const Unit& u : session->units()) {
    LayerArgs l(*u.of, u.parts, u.k);
    const qe_plan plan = session->plan(l, &gpu.device);
    if (plan.claim == 0) not_applicable("%s: the plugin declines %s: %s", u.name().c_str(), gpu.name.c_str(), reason_of(plan.reason).c_str());
  }
  session->device = gpu.device;
  session->host.use_gpu(Gpu::open(gpu.device.ordinal));
  return session;
}

#ifdef QE_HAVE_CUDA

namespace {

qe_tensor matrix(void* data, std::int64_t rows, std::int64_t cols) { return {QE_BF16, 2, {rows, cols, 0, 0}, {cols, 1, 0, 0}, data}; }

}  // namespace

GpuLayer::GpuLayer(Session& session, Gpu& gpu, const Unit& u)
    : session_(session), gpu_(gpu), name_(u.name()), args_(*u.of, u.parts, u.k), packed_(session.load(args_)), most_(*std::max_element(std::begin(kSizes), std::end(kSizes))) {
  for (const std::int64_t m : kSizes) workspace_bytes_ = std::max(workspace_bytes_, packed_.workspace_bytes(m));
  in_ = DeviceBuffer(gpu, static_cast<std::uint64_t>(most_ * packed_.k) * 2, MemoryOwner::kWorkspace, "inputs");
  out_ = DeviceBuffer(gpu, static_cast<std::uint64_t>(most_ * packed_.n) * 2, MemoryOwner::kWorkspace, "outputs");
  workspace_ = DeviceBuffer(gpu, std::max<std::uint64_t>(workspace_bytes_, 1), MemoryOwner::kWorkspace, "workspace");
  cuda_check(cudaDeviceSynchronize(), "loading");
  if (session.weight->warmup) {
    put(1, 0), rubbish(0);
    const qe_run scratch = run_of(most_, 0);
    session.checked("warmup", name_, [&](qe_error* e) { return session.weight->warmup(packed_.raw(), kSizes, static_cast<std::uint32_t>(std::size(kSizes)), &scratch, e); });
    gpu.wait();
  }
}

GpuLayer::~GpuLayer() { cudaStreamSynchronize(stream()); }

bool GpuLayer::declares(std::int64_t m, std::uint32_t flag) const {
  const qe_plan& p = packed_.plan;
  for (int i = 0; i < p.n_regimes && i < 4; ++i)
    if (m <= p.regime[i].m_hi || i + 1 == p.n_regimes) return p.regime[i].flags & flag;
  return false;
}

void GpuLayer::put(std::int64_t m, std::uint32_t seed) {
  const auto x = activations(m, packed_.k, 7 + seed);
  std::vector<std::uint16_t> half(x.size());
  std::transform(x.begin(), x.end(), half.begin(), [](float v) { return qe::f32_to_bf16(v); });
  if (gpu_.upload(in_.get(), half.data(), half.size() * 2, gpu_.stream()) != QE_OK) fail("the inputs cannot be copied to the device");
}

void GpuLayer::rubbish(int byte) {
  cuda_check(cudaMemsetAsync(workspace_.get(), byte, workspace_.bytes(), stream()), "filling the workspace");
  cuda_check(cudaMemsetAsync(out_.get(), 0xff, out_.bytes(), stream()), "filling the outputs");
}

void GpuLayer::enqueue(std::int64_t m, std::uint32_t flags) {
  const qe_run r = run_of(m, flags);
  session_.checked("run", name_, [&](qe_error* e) { return session_.weight->run(packed_.raw(), &r, e); });
}

std::vector<std::uint16_t> GpuLayer::result(std::int64_t m) {
  std::vector<std::uint16_t> y(static_cast<std::size_t>(m * packed_.n));
  gpu_.download(y.data(), out_.get(), y.size() * 2);
  return y;
}

qe_run GpuLayer::run_of(std::int64_t m, std::uint32_t flags) const {
  qe_run r{};
  r.struct_size = sizeof r;
  r.flags = flags;
  r.m = m;
  r.in = matrix(in_.get(), m, packed_.k);
  r.out = matrix(out_.get(), m, packed_.n);
  r.workspace_bytes = packed_.workspace_bytes(m);
  r.workspace = r.workspace_bytes ? workspace_.get() : nullptr;
  r.stream = gpu_.stream();
  return r;
}

#endif

}  // namespace qengine::conformance
