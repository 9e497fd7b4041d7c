// What tests of products in FP8 share: layers, tokens, and what a product of them is.
#pragma once

#include <qe/activation.hpp>
#include <qe/plugin.hpp>

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/sdk/cuda/codes_formats.hpp"
#include "tests/sdk/layer_view.hpp"

namespace qe_test {

using qe::Activation;

inline Activation rule(Activation::Kind kind, float scale = 1.0f, float bound = 0.0f) {
  Activation a;
  a.kind = kind, a.scale = scale, a.bound = bound;
  return a;
}

inline qe_tensor view(void* data, int dtype, std::int64_t rows, std::int64_t cols, std::int64_t stride) {
  qe_tensor t{};
  t.dtype = dtype, t.rank = 2, t.dim[0] = rows, t.dim[1] = cols, t.stride[0] = stride, t.stride[1] = 1, t.data = data;
  return t;
}

// bf16, with a token of zeros, one of tiny and one of large numbers; NaN between the rows.
inline std::vector<std::uint16_t> inputs(std::int64_t m, std::int64_t k, std::int64_t stride) {
  std::mt19937 rng(3);
  std::normal_distribution<float> d;
  std::vector<std::uint16_t> x(std::size_t(m * stride), 0x7fc0);
  for (std::int64_t t = 0; t < m; ++t)
    for (std::int64_t i = 0; i < k; ++i)
      x[std::size_t(t * stride + i)] = qe::f32_to_bf16(d(rng) * (0.2f + 2.0f * unit(hash(std::uint64_t(i), 5))) * (t == 3 ? 0.0f : t == 5 ? 1e-6f : t == 7 ? 300.0f : 1.0f));
  return x;
}
inline std::vector<float> token_of(const std::vector<std::uint16_t>& x, std::int64_t t, std::int64_t k, std::int64_t stride) {
  std::vector<float> v(static_cast<std::size_t>(k));
  for (std::int64_t i = 0; i < k; ++i) v[std::size_t(i)] = qe::bf16_to_f32(x[std::size_t(t * stride + i)]);
  return v;
}

// W[n, k] of the parts, one below the other.
template <class F>
std::vector<float> weights_of(const std::vector<std::int64_t>& ns, std::int64_t k) {
  std::vector<float> w;
  for (std::size_t i = 0; i < ns.size(); ++i) {
    const CodesSource s{std::int64_t(i)};
    for (std::int64_t r = 0; r < ns[i]; ++r)
      for (std::int64_t j = 0; j < k; ++j) {
        float scale;
        if constexpr (qe::HasRowScale<F>) scale = F::row_scale(s, r);
        else scale = F::meta(s, r, j);
        w.push_back(F::value(F::code(s, r, j)) * scale);
      }
  }
  return w;
}

// Products of the tokens in double precision, each part with the tokens that it sees.
template <class F>
std::vector<double> expected_of(const std::vector<std::int64_t>& ns, std::int64_t k, const std::vector<float>& w, const std::vector<std::uint16_t>& x, std::int64_t m, std::int64_t stride, bool quantized) {
  std::vector<double> y;
  std::vector<float> seen(static_cast<std::size_t>(k));
  for (std::int64_t t = 0; t < m; ++t) {
    const auto token = token_of(x, t, k, stride);
    std::int64_t row = 0;
    for (std::size_t p = 0; p < ns.size(); ++p) {
      seen = token;
      if (quantized) qe::act::quantize_dequantize(F::activation({std::int64_t(p)}), token.data(), seen.data(), k);
      for (std::int64_t r = 0; r < ns[p]; ++r, ++row) {
        double sum = 0;
        for (std::int64_t j = 0; j < k; ++j) sum += double(w[std::size_t(row * k + j)]) * double(seen[std::size_t(j)]);
        y.push_back(sum);
      }
    }
  }
  return y;
}

// Errors are held against the size of each token's outputs: tokens differ by eight powers of ten.
inline double error_of(const std::vector<float>& y, const std::vector<double>& expected, std::int64_t n) {
  double worst = 0;
  for (std::size_t t = 0; t < y.size() / std::size_t(n); ++t) {
    double err = 0, size = 0;
    for (std::size_t i = t * std::size_t(n); i < (t + 1) * std::size_t(n); ++i) err += (y[i] - expected[i]) * (y[i] - expected[i]), size += expected[i] * expected[i];
    if (!(err == err)) return INFINITY;
    worst = std::max(worst, size > 0 ? err / size : err);
  }
  return worst;
}

}  // namespace qe_test
