// Products in FP8: which layers have them, what they need, and all of their way but the kernels themselves, in the memory
// of the host.
#include <gtest/gtest.h>
#include <qe/cuda/linear.hpp>
#include <qe/cuda/load.hpp>

#include <cstdlib>
#include <memory>
#include <numeric>

#include "tests/sdk/cuda/codes_cases.hpp"
#include "tests/support/mock_host.hpp"

namespace {

using namespace qe_test;
using qengine::test::MockHost;

TEST(Codes, AreThoseOfTheEmulation) {
  std::mt19937 rng(1);
  for (int i = 0; i < 2000000; ++i) {
    const float x = i < 1000000 ? std::bit_cast<float>(std::uint32_t(rng())) : std::ldexp(float(std::int32_t(rng())), -31 + int(rng() % 24) - 12);
    if (x != x) continue;
    ASSERT_EQ(std::bit_cast<std::uint32_t>(qe::act::round_e4m3(x)), std::bit_cast<std::uint32_t>(qe::e4m3_to_f32(qe::f32_to_e4m3(x)))) << x;
  }
}

template <class F>
void find_codes(std::int64_t n, std::int64_t k) {
  const CodesSource source{1};
  const qe::cuda::Layout l = qe::cuda::layout<F>(source, n, k);
  std::vector<qe::Code<F>> scratch;
  for (std::int64_t strip = 0; strip < l.strips; ++strip) {
    std::vector<std::byte> bytes(std::size_t(l.strip_bytes()), std::byte{0xee});
    float factors[16] = {};
    qe::cuda::pack_strip<F>(source, l, {}, strip * 16, int(std::min<std::int64_t>(16, n - strip * 16)), 0, bytes.data(), factors, scratch);
    for (std::int64_t r = 0; r < std::min<std::int64_t>(16, n - strip * 16); ++r)
      for (std::int64_t c = 0; c < k; ++c) {
        const std::byte* unit = bytes.data() + c / 128 * l.unit_bytes;
        ASSERT_EQ(std::uint32_t(unit[qe::cuda::code_byte(int(r), int(c % 128))]), F::code(source, strip * 16 + r, c)) << strip * 16 + r << ' ' << c;
        if constexpr (!qe::HasRowScale<F>) {
          float scale;
          std::memcpy(&scale, unit + qe::cuda::kUnit * qe::cuda::kStrip, sizeof scale);
          ASSERT_EQ(scale, F::meta(source, strip * 16, c)) << strip << ' ' << c;
        }
      }
  }
}

TEST(Codes, LieInUnitsWhereTheKernelReadsThem) {
  MockHost host;
  qe::detail::host_table = &host.table;
  codes_case() = {};
  find_codes<CodesRow>(48, 272);
  find_codes<CodesRow>(16, 16);
  find_codes<CodesBlock>(272, 272);
  find_codes<CodesBlock>(32, 128);
}

TEST(Codes, SlicesCoverTheTokensAndTheWorkspaceHoldsThem) {
  std::mt19937 rng(2);
  for (int i = 0; i < 20000; ++i) {
    qe::cuda::CodesPlan p;
    p.blocks = i % 2;
    p.n = 16 * (1 + std::int64_t(rng() % 2000));
    p.k = 16 * (1 + std::int64_t(i % 5 ? rng() % 2000 : rng() % 200000));
    p.m_max = 1 + std::int64_t(rng() % 20000);
    const std::int64_t m = 65 + std::int64_t(rng() % (i % 3 ? p.m_max + 1 : 40000));
    std::int64_t at = 0;
    for (std::int64_t s = 0; s < p.slices(m); ++s) {
      ASSERT_EQ(p.cut(m, s), at);
      at = p.cut(m, s + 1);
      const std::int64_t tokens = at - p.cut(m, s);
      ASSERT_LE(tokens, p.most_tokens()) << m << ' ' << p.k;
      ASSERT_GE(tokens, qe::cuda::kTailTokens) << m << ' ' << p.k;
      ASSERT_EQ(p.cut(m, s) % 64, 0);
    }
    ASSERT_EQ(at, m);
    ASSERT_GE(p.panel_scales_at(), std::uint64_t(p.panel_rows() * p.k));
    ASSERT_GE(p.tokens_at() - p.panel_scales_at(), p.blocks ? std::uint64_t(p.panel_rows() / 128 * p.scale_stride() * 4) : 0);
    ASSERT_GE(p.token_scales_at() - p.tokens_at(), std::uint64_t(p.most_tokens() * p.k));
    ASSERT_GE(p.tail_scales_at() - p.token_scales_at(), std::uint64_t(p.most_tokens() * (p.blocks ? p.groups() : 1) * 4));
    ASSERT_GE(p.bytes() - p.tail_scales_at(), p.blocks ? std::uint64_t(64 * p.groups() * 4) : 0);
    for (const std::uint64_t o : {p.panel_scales_at(), p.tokens_at(), p.token_scales_at(), p.tail_scales_at(), p.bytes()}) ASSERT_EQ(o % 256, 0u);
    ASSERT_EQ(p.panel_rows() % 128, 0);
    ASSERT_GE(p.scale_stride(), p.groups());
  }
}

// Kernels and a product for the memory of the host, as plainly as they can be said.
template <class F>
struct OnHost {
  static constexpr bool kBlocks = !qe::HasRowScale<F>;
  static bool describe(int tiles, int run, qe::cuda::Kernel* out) { return *out = {tiles, 8, run, qe::cuda::kUnitBytes<F, kBlocks ? 128 : 0>}, true; }
  static const char* prepare(int) { return nullptr; }
  static const char* quantize(const qe::cuda::QuantizeArgs& a, qe_stream) {
    std::vector<float> x(static_cast<std::size_t>(a.k));
    for (std::int64_t t = 0; t < a.m; ++t) {
      for (std::int64_t i = 0; i < a.k; ++i) x[std::size_t(i)] = qe::bf16_to_f32(static_cast<const std::uint16_t*>(a.in)[t * a.in_stride + i]);
      const std::int64_t group = kBlocks ? 128 : a.k;
      for (std::int64_t i = 0; i < a.k; i += group) {
        const std::int64_t count = std::min(group, a.k - i);
        float most = qe::act::amax(x.data() + i, count), scale = a.scale;
        if (kBlocks) scale = std::max(most, 1e-10f) / 448.0f;
        else if (a.kind == Activation::e4m3_token) scale = std::max((a.bound > 0 ? std::min(most, a.bound) : most) / 448.0f, 1.0f / (448.0f * 512.0f));
        for (std::int64_t j = i; j < i + count; ++j) a.codes[t * a.k + j] = qe::f32_to_e4m3(x[std::size_t(j)] / scale);
        if (!kBlocks) a.scales[t] = scale;
        if (kBlocks && t < a.first) a.scales[i / 128 * a.first + t] = scale;
        if (kBlocks && a.tail && t >= a.m - 64) a.tail[i / 128 * 64 + t - (a.m - 64)] = scale;
      }
    }
    return nullptr;
  }
  static const char* codes(const qe::cuda::CodesArgs& a, qe_stream) {
    for (std::int64_t r = 0; r < a.rows; ++r)
      for (std::int64_t c = 0; c < a.k; ++c) {
        const std::uint8_t* unit = a.units + ((a.first + r) / 16 * a.width + c / 128) * a.unit_bytes;
        a.out[r * a.k + c] = unit[qe::cuda::code_byte(int((a.first + r) % 16), int(c % 128))];
        if (kBlocks && r % 128 == 0) std::memcpy(a.scales + r / 128 * a.scale_stride + c / 128, unit + 2048, sizeof(float));
      }
    return nullptr;
  }
  static const qe::cuda::Kernels& kernels() {
    static const qe::cuda::Kernels k{qe::cuda::detail::plan<F>, qe::cuda::detail::load<F>, describe, nullptr, nullptr, prepare, quantize, codes};
    return k;
  }
};

// qe.gemm/1 with the demands of cuBLASLt.
struct Products {
  inline static int calls = 0, by_one = 0;
  static qe_status gemm(void*, const qe_gemm_args* a, qe_error*) noexcept {
    ++calls;
    by_one += a->in_scale.dim[0] == 1;
    EXPECT_EQ(a->in.dtype, QE_E4M3);
    EXPECT_EQ(a->weight.dtype, QE_E4M3);
    EXPECT_EQ(a->n % 16 + a->k % 16, 0);
    EXPECT_GE(a->workspace_bytes, std::uint64_t(QE_GEMM_WORKSPACE));
    for (const qe_tensor* t : {&a->in, &a->weight, &a->out}) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(t->data) % 16, 0u);
      EXPECT_EQ(t->stride[0] % (t->dtype == QE_E4M3 ? 16 : 4), 0);
    }
    const bool blocks = a->in_scale.rank == 2;
    if (blocks) {
      EXPECT_EQ(a->m % 4, 0);
      EXPECT_EQ(a->in_scale.dim[0], a->m);
      EXPECT_EQ(a->in_scale.stride[1], a->m);
      EXPECT_EQ(a->weight_scale.dim[0], (a->n + 127) / 128);
      EXPECT_EQ(a->weight_scale.stride[0], ((a->k + 127) / 128 + 3) / 4 * 4);
    } else {
      EXPECT_TRUE((a->in_scale.dim[0] == 1 && a->weight_scale.dim[0] == 1) || (a->in_scale.dim[0] == a->m && a->weight_scale.dim[0] == a->n));
    }
    const auto scale = [](const qe_tensor& s, std::int64_t row, std::int64_t group) {
      return static_cast<const float*>(s.data)[s.rank == 2 ? row * s.stride[0] + group * s.stride[1] : s.dim[0] == 1 ? 0 : row];
    };
    const auto values = [&](const qe_tensor& t, const qe_tensor& s, std::int64_t rows, std::int64_t per_scale) {
      std::vector<double> v;
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t j = 0; j < a->k; ++j) v.push_back(double(qe::e4m3_to_f32(static_cast<const std::uint8_t*>(t.data)[r * t.stride[0] + j])) * double(scale(s, r / per_scale, j / 128)));
      return v;
    };
    const auto in = values(a->in, a->in_scale, a->m, 1), weight = values(a->weight, a->weight_scale, a->n, blocks ? 128 : 1);
    for (std::int64_t t = 0; t < a->m; ++t)
      for (std::int64_t r = 0; r < a->n; ++r)
        static_cast<float*>(a->out.data)[t * a->out.stride[0] + r] = float(std::inner_product(in.begin() + t * a->k, in.begin() + (t + 1) * a->k, weight.begin() + r * a->k, 0.0));
    return QE_OK;
  }
  static const void* extension(void*, const char* id) noexcept {
    static const qe_gemm_v1 table{sizeof table, 0, nullptr, gemm, nullptr};
    return std::string_view(id) == QE_GEMM_ID ? &table : nullptr;
  }
};

void on_gpu(MockHost& host, int sm) {
  host.device.kind = QE_CUDA;
  host.device.sm = sm;
  host.device.sm_count = 132;
  host.table.extension = Products::extension;
  qe::detail::host_table = &host.table;
}

struct Planned {
  qe::cuda::LayerPlan layer;
  qe_plan plan{};
  const qe_regime& last() const { return plan.regime[plan.n_regimes - 1]; }
};
template <class F>
Planned planned(const std::vector<std::int64_t>& ns, std::int64_t k, int sm = 90, int flags = QE_LAYER_ACT_QUANT) {
  MockHost host;
  on_gpu(host, sm);
  const qe_model m = host.model();
  LayerView v(ns, k, 2048, flags);
  const std::vector<const qe::cuda::Kernels*> each(ns.size(), &OnHost<F>::kernels());
  qe::Io io(m, qe::Io::Mode::plan);
  Planned p;
  p.layer = qe::cuda::plan_layer(host.device, m, v.layer, each, io);
  p.plan.struct_size = sizeof p.plan;
  qe::cuda::describe_plan(p.layer, v.layer, p.plan);
  EXPECT_EQ(qe::cuda::quantizes_activations(p.layer, v.layer), std::string_view(p.last().kernel) == "panel+gemm_fp8");
  return p;
}

TEST(Codes, ThePlanSaysWhoMultipliesThem) {
  const auto kernel = [](const Planned& p) { return std::string(p.last().kernel); };
  const std::string fp8 = "panel+gemm_fp8", bf16 = "panel+gemm";
  codes_case() = {.activation = rule(Activation::e4m3_token)};
  const Planned p = planned<CodesRow>({48, 32}, 272);
  EXPECT_EQ(kernel(p), fp8);
  EXPECT_GE(p.last().workspace_bytes, p.layer.codes.bytes() + QE_GEMM_WORKSPACE);
  EXPECT_GE(p.last().workspace_bytes, std::uint64_t(2048 * 272 + 80 * 272) + QE_GEMM_WORKSPACE);
  EXPECT_EQ(p.plan.regime[0].workspace_bytes, 0u);
  EXPECT_EQ(kernel(planned<CodesRow>({48}, 272, 90, 0)), bf16) << "not asked for";
  EXPECT_EQ(kernel(planned<CodesRow>({48}, 272, 90, QE_LAYER_ACT_QUANT | QE_LAYER_EXACT)), bf16);
  EXPECT_EQ(kernel(planned<CodesRow>({48}, 264)), bf16) << "inputs by sixteens";
  EXPECT_EQ(kernel(planned<CodesRow>({40, 16}, 272)), bf16) << "rows by sixteens";
  for (const int sm : {80, 86, 89, 100, 120}) EXPECT_EQ(kernel(planned<CodesRow>({48}, 272, sm)), bf16) << sm;
  codes_case().activation = rule(Activation::e4m3_static, 0.1f);
  EXPECT_EQ(kernel(planned<CodesRow>({48}, 272)), fp8);
  EXPECT_EQ(kernel(planned<CodesRow>({48}, 272, 89)), bf16) << "a scale a row";
  codes_case().one_scale = true;
  EXPECT_EQ(kernel(planned<CodesRow>({48}, 272, 89)), fp8);
  EXPECT_EQ(kernel(planned<CodesRow>({48}, 272, 86)), bf16);
  codes_case().activation = rule(Activation::none);
  EXPECT_EQ(kernel(planned<CodesRow>({48}, 272)), bf16) << "the scheme has no rule";
  codes_case().activation = rule(Activation::i8_token);
  EXPECT_EQ(kernel(planned<CodesRow>({48}, 272)), bf16);

  codes_case() = {.activation = rule(Activation::e4m3_group)};
  EXPECT_EQ(kernel(planned<CodesBlock>({128, 48}, 272)), fp8);
  EXPECT_EQ(kernel(planned<CodesBlock>({48}, 128)), fp8);
  EXPECT_EQ(kernel(planned<CodesBlock>({48}, 272, 89)), bf16);
  codes_case().activation.group = 64;
  EXPECT_EQ(kernel(planned<CodesBlock>({48}, 272)), bf16);
  codes_case().activation = rule(Activation::e4m3_token);
  EXPECT_EQ(kernel(planned<CodesBlock>({48}, 272)), bf16);
  codes_case() = {.block_rows = 64, .activation = rule(Activation::e4m3_group)};
  EXPECT_EQ(kernel(planned<CodesBlock>({48}, 272)), bf16);
}

TEST(Codes, PartsShareAProductWhereTheySeeTheSameTokens) {
  std::vector<qe::cuda::Layout> parts(3);
  parts[0].n = 256, parts[1].n = 48, parts[2].n = 80;
  qe::cuda::CodesPlan p;
  const Activation a = rule(Activation::e4m3_static, 0.5f), b = rule(Activation::e4m3_static, 0.25f), token = rule(Activation::e4m3_token), group = rule(Activation::e4m3_group);
  const float none = std::nanf("");
  const auto sizes = [&](const std::vector<qe::cuda::Segment>& all) {
    std::vector<std::int64_t> n;
    std::int64_t at = 0;
    for (const auto& s : all) {
      EXPECT_EQ(s.first, at);
      at += s.n;
      n.push_back(s.n);
    }
    return n;
  };
  using V = std::vector<std::int64_t>;
  auto s = qe::cuda::segments_of(p, parts, {a, a, a}, {2, 2, 2});
  EXPECT_EQ(sizes(s), V({384}));
  EXPECT_TRUE(s[0].one);
  s = qe::cuda::segments_of(p, parts, {a, a, a}, {2, 3, 2});
  EXPECT_EQ(sizes(s), V({384}));
  EXPECT_FALSE(s[0].one);
  s = qe::cuda::segments_of(p, parts, {a, b, b}, {2, 3, none});
  EXPECT_EQ(sizes(s), V({256, 128}));
  EXPECT_TRUE(s[0].one);
  EXPECT_FALSE(s[1].one);
  EXPECT_FALSE(qe::cuda::segments_of(p, parts, {token, token, token}, {2, 2, 2})[0].one);
  p.apart = true;
  EXPECT_EQ(sizes(qe::cuda::segments_of(p, parts, {a, a, a}, {2, 2, 2})), V({256, 48, 80}));
  p.apart = false, p.blocks = true;
  EXPECT_EQ(sizes(qe::cuda::segments_of(p, parts, {group, group, group}, {0, 0, 0})), V({304, 80})) << "a block belongs to one part";
}

// A layer in the memory of the host: panels, slices, the last tokens, parts and their scales come together.
template <class F>
void multiplies(const std::vector<std::int64_t>& ns, std::int64_t k, std::int64_t m, int sm = 90) {
  SCOPED_TRACE(testing::Message() << m << " tokens, rows " << testing::PrintToString(ns) << ", inputs " << k);
  MockHost host;
  on_gpu(host, sm);
  {
    const qe_model model = host.model();
    LayerView v(ns, k, 100, QE_LAYER_ACT_QUANT);
    const std::vector<const qe::cuda::Kernels*> each(ns.size(), &OnHost<F>::kernels());
    qe::Io io(model, qe::Io::Mode::plan);
    qe_plan plan{};
    plan.struct_size = sizeof plan;
    qe::cuda::describe_plan(qe::cuda::plan_layer(host.device, model, v.layer, each, io), v.layer, plan);
    const qe::cuda::Layer layer(host.device, model, v.layer, each, nullptr);
    const std::int64_t n = std::accumulate(ns.begin(), ns.end(), std::int64_t{0}), in_stride = k + 3, out_stride = n + 4;
    auto x = inputs(m, k, in_stride);
    std::vector<float> y(std::size_t(m * out_stride), -7.0f);
    const std::uint64_t bytes = plan.regime[plan.n_regimes - 1].workspace_bytes;
    std::unique_ptr<std::byte, void (*)(void*)> workspace(static_cast<std::byte*>(std::aligned_alloc(256, (bytes + 511) / 256 * 256)), std::free);
    std::memset(workspace.get(), 0xff, bytes);
    workspace.get()[bytes] = std::byte{0x5a};
    qe_run r{};
    r.struct_size = sizeof r;
    r.m = m;
    r.in = view(x.data(), QE_BF16, m, k, in_stride);
    r.out = view(y.data(), QE_F32, m, n, out_stride);
    r.workspace = workspace.get(), r.workspace_bytes = bytes;
    Products::calls = Products::by_one = 0;
    layer.run(r);
    EXPECT_EQ(workspace.get()[bytes], std::byte{0x5a}) << "wrote behind the workspace";
    std::vector<float> out;
    for (std::int64_t t = 0; t < m; ++t) {
      out.insert(out.end(), y.begin() + t * out_stride, y.begin() + t * out_stride + n);
      for (std::int64_t i = n; i < out_stride; ++i) EXPECT_EQ(y[std::size_t(t * out_stride + i)], -7.0f);
    }
    // float32 outputs of sums in double precision; W is rounded once
    EXPECT_LE(error_of(out, expected_of<F>(ns, k, weights_of<F>(ns, k), x, m, in_stride, true), n), 1e-13);
  }
  EXPECT_EQ(host.live, 0);
}

TEST(Codes, ALayerMultipliesThem) {
  codes_case() = {.activation = rule(Activation::e4m3_token)};
  multiplies<CodesRow>({48, 32}, 272, 67);
  EXPECT_EQ(Products::calls, 1);
  multiplies<CodesRow>({16}, 16, 1100);
  EXPECT_EQ(Products::calls, 2) << "more tokens than were planned";
  multiplies<CodesRow>({2064}, 16384, 65);
  EXPECT_EQ(Products::calls, 2) << "panels";
  codes_case() = {.one_scale = true, .activation = rule(Activation::e4m3_static, 0.02f)};
  multiplies<CodesRow>({48}, 272, 67);
  EXPECT_EQ(Products::by_one, 1);
  multiplies<CodesRow>({48, 32}, 272, 67);
  EXPECT_EQ(Products::by_one, 0) << "each part has its own";
  EXPECT_EQ(Products::calls, 1);
  multiplies<CodesRow>({48, 32}, 272, 67, 89);
  EXPECT_EQ(Products::by_one, 2) << "only one for all is known there";
  codes_case().scale_of_part = 1.5f;
  multiplies<CodesRow>({48, 32, 16}, 272, 67);
  EXPECT_EQ(Products::by_one, 3);
  codes_case() = {.activation = rule(Activation::e4m3_group)};
  for (const std::int64_t m : {65, 66, 67, 68}) {
    multiplies<CodesBlock>({128, 48}, 272, m);
    EXPECT_EQ(Products::calls, m % 4 ? 2 : 1);
  }
  multiplies<CodesBlock>({80, 48}, 256, 71);
  EXPECT_EQ(Products::calls, 4) << "a block belongs to one part";
  multiplies<CodesBlock>({272}, 640, 1030);
}

}  // namespace
