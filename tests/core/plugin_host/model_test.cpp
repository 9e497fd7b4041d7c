// A whole model through the host: every matrix planned, loaded, equal to its tensor, multiplied.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "core/base/error.hpp"
#include "core/base/thread_pool.hpp"
#include "core/plugin_host/format_plan.hpp"
#include "tests/support/paths.hpp"

namespace qengine {
namespace {

PluginHostOptions shipped() {
  PluginHostOptions o;
  o.builtin_dir = test::binary_dir() / "bin/plugins";
  return o;
}

std::vector<float> bf16_tensor(const Checkpoint& c, const std::string& name) {
  const Tensor* t = c.find(name);
  EXPECT_TRUE(t) << name;
  std::vector<float> out(t->bytes / 2);
  const auto data = c.data(*t);
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint16_t half;
    std::memcpy(&half, data.data() + 2 * i, 2);
    const std::uint32_t bits = std::uint32_t{half} << 16;
    std::memcpy(&out[i], &bits, 4);
  }
  return out;
}

TEST(UnquantizedModel, EveryMatrixIsItsTensorAndItsProduct) {
  const auto folder = test::fixture("tiny-qwen3");
  if (folder.empty()) GTEST_SKIP() << "fixture tiny-qwen3 is not there";
  PluginHost host(shipped());
  host.scan();
  for (const auto& r : host.refused()) ADD_FAILURE() << r.reason;
  auto checkpoint = Checkpoint::open(folder);
  const ModelConfig config = read_model_config(*checkpoint);
  FormatOptions options;
  options.exact = true;
  const auto plan = FormatPlan::make(host, checkpoint, config, options);
  EXPECT_TRUE(plan->warnings().empty()) << plan->warnings()[0];
  EXPECT_EQ(plan->report().size(), static_cast<std::size_t>(config.num_layers) * 4 + 1);
  ThreadPool pool(2);
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < plan->layers().size(); ++i) {
    const LayerSpec& spec = plan->layers()[i];
    const auto linear = plan->load(i, pool);
    ASSERT_EQ(linear->k(), spec.k);
    bytes += linear->bytes(QE_MEM_WEIGHT) + linear->bytes(QE_MEM_PERSIST);
    std::vector<float> expected;
    for (const PartSpec& part : spec.parts) {
      const auto w = bf16_tensor(*checkpoint, part.name + ".weight");
      expected.insert(expected.end(), w.begin(), w.end());
    }
    std::vector<float> got(expected.size());
    linear->dequant(0, linear->n(), got.data());
    ASSERT_EQ(got, expected) << spec.name;

    const std::int64_t m = 3, n = linear->n(), k = linear->k();
    std::vector<float> in(m * k), out(m * (n + 5), -1.0f);
    for (std::size_t j = 0; j < in.size(); ++j) in[j] = std::sin(static_cast<float>(j));
    linear->run(in.data(), k, out.data(), n + 5, m);
    for (std::int64_t r = 0; r < m; ++r)
      for (std::int64_t c = 0; c < n; ++c) {
        double sum = 0, size = 0;
        for (std::int64_t j = 0; j < k; ++j) {
          const double p = double{in[r * k + j]} * expected[c * k + j];
          sum += p, size += std::fabs(p);
        }
        ASSERT_NEAR(out[r * (n + 5) + c], sum, size * k * 6e-8) << spec.name << " " << r << " " << c;
      }
    if (spec.parts[0].role == QE_ROLE_LM_HEAD) {
      ASSERT_TRUE(linear->has_rows());
      const std::int32_t ids[] = {5, 0, 1000};
      std::vector<float> rows(3 * k);
      linear->rows(ids, 3, rows.data());
      for (int r = 0; r < 3; ++r)
        for (std::int64_t j = 0; j < k; ++j) ASSERT_EQ(rows[r * k + j], expected[ids[r] * k + j]);
    }
  }
  EXPECT_EQ(bytes, plan->weight_bytes());
  std::cout << format_table(plan->report(), false);
}

}  // namespace
}  // namespace qengine
