// Every path of the CPU product against a double-precision sum over the definition, and the fast
// code against the scalar code, bit for bit: the cases, which linear_*_test.cpp make with a few formats each.
#pragma once

#include <gtest/gtest.h>
#include <qe/format_impl.hpp>
#include <qe/stream_linear.hpp>

#include <random>

#include "tests/sdk/formats.hpp"
#include "tests/sdk/layer_view.hpp"
#include "tests/support/mock_host.hpp"

namespace {

using namespace qe_test;
using qe::Planes;
namespace meta = qe::meta;

template <class F>
struct One : qe::Linear<One<F>, F> {
  static constexpr qe::Row kRows[] = {{QE_CPU, 0, 0, 1}};
  static constexpr const char *kScheme = "test", *kQuantMethod = "test";
  static int detect(const qe_model&, qe::Reason&) { return 0; }
};

qe_tensor matrix(float* data, std::int64_t rows, std::int64_t cols) {
  qe_tensor t{};
  t.dtype = QE_F32, t.rank = 2, t.dim[0] = rows, t.dim[1] = cols, t.stride[0] = cols, t.stride[1] = 1, t.data = data;
  return t;
}

template <class P>
struct Loaded {
  qe_plan plan{};
  qe_linear h = nullptr;
  qengine::test::MockHost& host;
  Loaded(qengine::test::MockHost& host, LayerView& f) : host(host) {
    qe::detail::host_table = &host.table;
    const qe_model m = host.model();
    qe_error e{};
    plan.struct_size = sizeof plan;
    EXPECT_EQ(P::plan(&host.device, &m, &f.layer, &plan, &e), QE_OK) << e.message;
    EXPECT_EQ(plan.claim, 2) << plan.reason;
    EXPECT_EQ(P::load(reinterpret_cast<qe_dev>(&host.device), &m, &f.layer, nullptr, &h, &e), QE_OK) << e.message;
    if (!h) return;
    EXPECT_EQ(P::bytes(h, QE_MEM_WEIGHT), plan.weight_bytes);
    EXPECT_EQ(P::bytes(h, QE_MEM_PERSIST), plan.persist_bytes);
    EXPECT_EQ(host.allocated[QE_MEM_WEIGHT], std::max<std::uint64_t>(1, plan.weight_bytes));
    EXPECT_EQ(host.allocated[QE_MEM_PERSIST], plan.persist_bytes);
  }
  ~Loaded() {
    if (h) P::destroy(h);
    EXPECT_EQ(host.live, 0);
  }
  std::vector<float> dequant(std::int64_t n, std::int64_t k) {
    std::vector<float> w(std::size_t(n * k), NAN);
    qe_tensor t = matrix(w.data(), n, k);
    qe_error e{};
    EXPECT_EQ(P::dequant(h, 0, n, &t, nullptr, &e), QE_OK) << e.message;
    return w;
  }
  std::vector<float> run(const std::vector<float>& x, std::int64_t m, std::int64_t k, std::int64_t n) {
    std::vector<float> y(std::size_t(m * n), NAN);
    std::vector<std::byte> space(std::size_t(plan.regime[0].workspace_bytes), std::byte{0xff});
    qe_run r{};
    r.struct_size = sizeof r;
    r.m = m;
    r.in = matrix(const_cast<float*>(x.data()), m, k);
    r.out = matrix(y.data(), m, n);
    r.workspace = space.data();
    r.workspace_bytes = space.size();
    qe_error e{};
    EXPECT_EQ(P::run(h, &r, &e), QE_OK) << e.message;
    return y;
  }
};

std::vector<float> inputs(std::int64_t m, std::int64_t k, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> d;
  std::vector<float> x(std::size_t(m * k));
  for (std::int64_t t = 0; t < m; ++t)
    for (std::int64_t i = 0; i < k; ++i) x[std::size_t(t * k + i)] = d(rng) * (0.2f + 2.0f * unit(hash(std::uint64_t(i), 5)));  // unequal channels
  return x;
}

double nmse(const std::vector<float>& y, const std::vector<float>& w, const std::vector<float>& x, std::int64_t m, std::int64_t k, std::int64_t n) {
  double err = 0, ref = 0;
  for (std::int64_t t = 0; t < m; ++t)
    for (std::int64_t i = 0; i < n; ++i) {
      double s = 0;
      for (std::int64_t j = 0; j < k; ++j) s += double(w[std::size_t(i * k + j)]) * x[std::size_t(t * k + j)];
      const double d = y[std::size_t(t * n + i)] - s;
      err += d * d, ref += s * s;
    }
  return ref > 0 ? err / ref : err;
}

struct Shape { std::int64_t n, k; int group; };
const Shape kShapes[] = {{16, 256, 32}, {24, 512, 128}, {7, 256, 16}, {9, 768, 0}, {33, 512, 64}};
const Shape kOddShapes[] = {{8, 40, 32}, {13, 100, 24}, {5, 33, 0}, {17, 272, 128}, {1, 1, 0}, {20, 330, 48}, {11, 95, 10}};

template <class F> constexpr bool two_level = qe::meta_super_bytes<typename F::Meta> > 0;

template <class T>
class LinearTest : public testing::Test {};
TYPED_TEST_SUITE_P(LinearTest);

TYPED_TEST_P(LinearTest, DequantIsTheDefinitionAndErrorsAreTheExpectedOnes) {
  using F = TypeParam;
  std::vector<Shape> shapes(std::begin(kShapes), std::end(kShapes));
  if (!two_level<F>) shapes.insert(shapes.end(), std::begin(kOddShapes), std::end(kOddShapes));
  for (const Shape& s : shapes) {
    if (two_level<F> && s.group != 16 && s.group != 32) continue;
    SCOPED_TRACE(testing::Message() << s.n << " x " << s.k << " group " << s.group);
    group_size() = s.group;
    const Source source{s.group};
    const std::int64_t m = 5;
    const auto x = inputs(m, s.k, 3);
    for (const bool exact : {true, false}) {
      qengine::test::MockHost host;
      LayerView f({s.n}, s.k, m, exact ? QE_LAYER_EXACT : 0);
      Loaded<One<F>> l(host, f);
      ASSERT_TRUE(l.h);
      const auto w = l.dequant(s.n, s.k);
      for (std::int64_t n = 0; n < s.n; ++n)
        for (std::int64_t k = 0; k < s.k; ++k) {
          typename F::Meta::Value v = F::meta(source, n, k);
          std::byte record[16]{}, super[16]{};
          F::Meta::pack(v, record);
          if constexpr (two_level<F>) F::Meta::pack_super(F::super(source, n, k), super);
          ASSERT_EQ(w[std::size_t(n * s.k + k)], qe::weight<F>(F::value(F::code(source, n, k)), qe::terms_of<typename F::Meta>(super, record), 1.0f)) << n << ' ' << k;
        }
      const double e = nmse(l.run(x, m, s.k, s.n), w, x, m, s.k, s.n);
      const bool integer = !exact && qe::cpu::kFastPath<F> == qe::cpu::Path::integer;
      // int16 activations: a step of amax / 32512 is uniform noise of step^2 / 12; amax of 32 normal numbers of unequal
      // variance is 2 to 3.5 of their root mean square, so 3e-10 to 1e-9. float32 sums: 1e-13.
      EXPECT_LE(e, integer ? 2e-9 : 1e-10);
      if (integer && s.n * s.k > 1000) {
        EXPECT_GE(e, 1e-10) << "too good: nothing was rounded";
      }
    }
  }
}

// The order of operations is one, whatever M is and whichever instructions run it.
TYPED_TEST_P(LinearTest, FastIsScalarBitForBitAndIndependentOfTheBatch) {
  using F = TypeParam;
  if (qe::cpu::isa() == qe::cpu::Isa::scalar) GTEST_SKIP() << "this machine has scalar code only";
  const qe::cpu::Isa best = qe::cpu::isa();
  std::vector<Shape> shapes = {{33, 512, 32}, {24, 768, 16}};
  if (!two_level<F>) shapes.insert(shapes.end(), {{41, 96, 0}, {13, 100, 24}, {12, 600, 128}, {20, 330, 48}, {5, 33, 0}, {9, 700, 0}, {16, 320, 64}});
  for (const Shape& s : shapes) {
    group_size() = s.group;
    for (const bool exact : {false, true}) {
      SCOPED_TRACE(testing::Message() << s.n << " x " << s.k << " group " << s.group << (exact ? " exact" : ""));
      qengine::test::MockHost host;
      const std::int64_t top = s.k == 512 || s.k == 33 ? 511 : 64;
      LayerView f({s.n}, s.k, top, exact ? QE_LAYER_EXACT : 0);
      Loaded<One<F>> l(host, f);
      ASSERT_TRUE(l.h);
      const auto x = inputs(top, s.k, 11);
      qe::cpu::isa() = qe::cpu::Isa::scalar;
      const auto expected = l.run(x, top, s.k, s.n);
      for (int isa = int(qe::cpu::Isa::avx2); isa <= int(best); ++isa) {
        qe::cpu::isa() = qe::cpu::Isa(isa);
        for (const std::int64_t m : {0, 1, 2, 3, 7, 8, 9, 16, 17, 64, 511}) {
          if (m > top) continue;
          const auto y = l.run(x, m, s.k, s.n);
          for (std::int64_t i = 0; i < m * s.n; ++i) ASSERT_EQ(y[std::size_t(i)], expected[std::size_t(i)]) << "m " << m << " at " << i << ' ' << qe::cpu::isa_name(qe::cpu::isa());
        }
      }
    }
  }
}

REGISTER_TYPED_TEST_SUITE_P(LinearTest, DequantIsTheDefinitionAndErrorsAreTheExpectedOnes, FastIsScalarBitForBitAndIndependentOfTheBatch);

}  // namespace
