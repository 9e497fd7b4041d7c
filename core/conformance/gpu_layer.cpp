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

// The layer as core knows it, if only some of its parts.
LayerSpec spec_of(const Unit& u) {
  LayerSpec out;
  out.k = u.k;
  for (const LayerArgs::Part& part : u.parts) {
    out.parts.push_back({part.role, part.name, part.n});
    for (const LayerSpec& layer : u.of->layers)
      for (const PartSpec& p : layer.parts)
        if (p.name == part.name) out.parts.back().bias = p.bias;
  }
  return out;
}

}  // namespace

GpuLayer::GpuLayer(Session& session, Gpu& gpu, const Unit& u, bool chain)
    : session_(session), gpu_(gpu), name_(u.name()), args_(*u.of, u.parts, u.k), chain_(chain ? StepChain(spec_of(u), u.of->config) : StepChain()), packed_(load()), most_(*std::max_element(std::begin(kSizes), std::end(kSizes))) {
  for (const std::int64_t m : kSizes) workspace_bytes_ = std::max(workspace_bytes_, packed_.workspace_bytes(m));
  in_ = DeviceBuffer(gpu, static_cast<std::uint64_t>(most_ * packed_.k) * 2, MemoryOwner::kWorkspace, "inputs");
  out_ = DeviceBuffer(gpu, static_cast<std::uint64_t>(most_ * packed_.n) * 2, MemoryOwner::kWorkspace, "outputs");
  workspace_ = DeviceBuffer(gpu, std::max<std::uint64_t>(workspace_bytes_, 1), MemoryOwner::kWorkspace, "workspace");
  // Norm weights around 1, small biases.
  const auto vector = [&](DeviceBuffer& to, qe_tensor& tensor, float middle, float spread, const char* what) {
    std::vector<float> v(static_cast<std::size_t>(tensor.dim[0]));
    const auto random = activations(1, tensor.dim[0], 5);
    std::transform(random.begin(), random.end(), v.begin(), [&](float r) { return middle + spread * r; });
    to = DeviceBuffer(gpu, v.size() * sizeof(float), MemoryOwner::kWorkspace, what);
    if (gpu.upload(to.get(), v.data(), v.size() * sizeof(float), gpu.stream()) != QE_OK) fail("%s cannot be copied to the device", what);
    tensor.data = to.get();
  };
  if (!chain_.before.empty()) vector(norm_, chain_.norm.weight, 1.0f, 0.1f, "norm weights");
  if (chain_.bias.head.kind) vector(bias_, chain_.bias.value, 0.0f, 0.5f, "biases");
  chain_.residual.value.data = out_.get();
  cuda_check(cudaDeviceSynchronize(), "loading");
  if (session.weight->warmup) {
    put(1, 0), rubbish(0);
    const qe_run scratch = run_of(most_, 0);
    session.checked("warmup", name_, [&](qe_error* e) { return session.weight->warmup(packed_.raw(), kSizes, static_cast<std::uint32_t>(std::size(kSizes)), &scratch, e); });
    gpu.wait();
  }
}

GpuLayer::~GpuLayer() { cudaStreamSynchronize(stream()); }

Packed GpuLayer::load() {
  args_.layer.n_before = static_cast<std::uint32_t>(chain_.before.size());
  args_.layer.n_after = static_cast<std::uint32_t>(chain_.after.size());
  args_.layer.before = chain_.before.data();
  args_.layer.after = chain_.after.data();
  Packed out = session_.load(args_);
  const qe_plan& p = out.plan;
  if (p.n_regimes < 1 || p.n_regimes > 4) fail("%s: plan has %d regimes", name_.c_str(), p.n_regimes);
  for (int i = 0; i < p.n_regimes; ++i)
    if (p.regime[i].n_before > chain_.before.size() || p.regime[i].n_after > chain_.after.size())
      fail("%s: regime %d takes %u steps before and %u behind, offered were %zu and %zu", name_.c_str(), i, p.regime[i].n_before, p.regime[i].n_after, chain_.before.size(), chain_.after.size());
  return out;
}

const qe_regime& GpuLayer::regime(std::int64_t m) const {
  const qe_plan& p = packed_.plan;
  int i = 0;
  while (i + 1 < p.n_regimes && m > p.regime[i].m_hi) ++i;
  return p.regime[i];
}

bool GpuLayer::ends_with(std::int64_t m, int kind) const {
  const std::uint32_t n = regime(m).n_after;
  return n > 0 && chain_.after[n - 1]->kind == kind;
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

void GpuLayer::enqueue(std::int64_t m, std::uint32_t flags, bool steps) {
  qe_run r = run_of(m, flags);
  if (steps) {
    r.n_before = regime(m).n_before, r.n_after = regime(m).n_after;
    r.before = chain_.before.data() + (chain_.before.size() - r.n_before);
    r.after = chain_.after.data();
    r.out = matrix(out_.get(), m, columns(m, true));
    chain_.residual.value.dim[0] = m;
  }
  session_.checked("run", name_, [&](qe_error* e) { return session_.weight->run(packed_.raw(), &r, e); });
}

std::vector<std::uint16_t> GpuLayer::result(std::int64_t m, bool steps) {
  std::vector<std::uint16_t> y(static_cast<std::size_t>(m * columns(m, steps)));
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
  r.workspace = r.workspace_bytes ? workspace(m).at : nullptr;
  r.stream = gpu_.stream();
  return r;
}

#endif

}  // namespace qengine::conformance
