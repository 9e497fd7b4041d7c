#include "core/server/metrics.hpp"

#include <gtest/gtest.h>

#include <array>

namespace qengine::server {
namespace {

TEST(Metrics, HistogramsAreCumulativeAndLabelsEscaped) {
  Metrics m(Labels{{"model_name", "a\"b\\c"}});
  Histogram& h = m.histogram("vllm:x_seconds", "help", {1, 2.5}, {});
  h.observe(1);    // on the edge: counted below it
  h.observe(2);
  h.observe(100);
  const std::string text = m.render();
  EXPECT_NE(text.find("vllm:x_seconds_bucket{model_name=\"a\\\"b\\\\c\",le=\"1\"} 1\n"), std::string::npos) << text;
  EXPECT_NE(text.find("le=\"2.5\"} 2\n"), std::string::npos);
  EXPECT_NE(text.find("le=\"+Inf\"} 3\n"), std::string::npos);
  EXPECT_NE(text.find("_count{model_name=\"a\\\"b\\\\c\"} 3\n"), std::string::npos);
  EXPECT_NE(text.find("_sum{model_name=\"a\\\"b\\\\c\"} 103\n"), std::string::npos);
  EXPECT_NE(text.find("# TYPE vllm:x_seconds histogram\n"), std::string::npos);
}

TEST(Metrics, AHistogramCountedElsewhere) {
  Metrics m(Labels{});
  Histogram& h = m.histogram("x", "h", {1, 8});
  for (const std::int64_t n : {1, 2}) h.set(std::array<std::int64_t, 3>{n, 0, 5 * n}, 100 * static_cast<double>(n));  // the last one holds
  EXPECT_EQ(m.render(), "# HELP x h\n# TYPE x histogram\nx_bucket{le=\"1\"} 2\nx_bucket{le=\"8\"} 2\nx_bucket{le=\"+Inf\"} 12\nx_sum 200\nx_count 12\n");
}

TEST(Metrics, TheSameNameAndLabelsAreOneSeries) {
  Metrics m(Labels{});
  m.counter("a", "h", {{"r", "1"}}).add(2);
  m.counter("a", "h", {{"r", "1"}}).add(3);
  m.counter("a", "h", {{"r", "2"}}).add();
  EXPECT_EQ(m.render(), "# HELP a h\n# TYPE a counter\na{r=\"1\"} 5\na{r=\"2\"} 1\n");
}

TEST(Metrics, EdgesReachTheLongestContext) {
  EXPECT_EQ(one_two_five(8192).back(), 10000);
  EXPECT_EQ(one_two_five(10).back(), 10);
}

}  // namespace
}  // namespace qengine::server
