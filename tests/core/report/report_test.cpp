// A report out of measurements made up by hand: what is computed, and what the page says of it.
#include "core/report/report.hpp"

#include <gtest/gtest.h>

namespace qengine {
namespace {

using Json = ReportJson;

Json speed(double one, double many) {
  const auto level = [](int c, double tok_s) {
    return Json{{"concurrency", c}, {"output_tok_s", tok_s}, {"ttft_ms", {{"median", 10.0}}}, {"itl_ms", {{"median", 1000 / tok_s}}}, {"bandwidth_share", 0.5}};
  };
  return {{"levels", {level(1, one), level(16, many)}}, {"valid", true}, {"failed", 0},
          {"qengine", {{"load_s", 0.5}, {"weights_bytes", 1 << 30}, {"kv_tokens", 4096}, {"kv", {{"bytes_per_token", 100}, {"plugin", "core"}}}, {"peak_rss_bytes", 5}, {"prompts_sha256", "x"}}}};
}

std::vector<ArmPieces> two_arms() {
  ArmPieces base, q;
  base.name = "bf16";
  q.name = "fast & <small>";
  q.flags = "--quantization=x";
  // The machine gets slower from round to round; the ratio stays 1.5 with one, and about 1 with sixteen.
  base.speed = {speed(100, 1000), speed(90, 1010), speed(80, 990)};
  q.speed = {speed(150, 1001), speed(135, 1009), speed(120, 991)};
  for (Json& s : q.speed) s["qengine"]["weights_bytes"] = 1 << 29;
  base.ppl = {{"ppl", 20.0}, {"ppl_error", 0.5}, {"tokens", 900}};
  q.kl = {{"ppl_q", 20.1}, {"ppl_q_error", 0.5}, {"ppl_ratio", 1.005}, {"ppl_ratio_error", 0.004}, {"tokens", 900}, {"kld", {{"mean", 0.01}, {"mean_error", 0.001}, {"p99", 0.1}}}, {"same_top_p", 0.95}, {"verdict", "warn"},
          {"reasons", {{{"gate", "kl_mean_ok"}, {"value", 0.01}, {"limit", 0.001}}}}};
  q.greedy = {{"equal_count", 7}, {"ties", 2}, {"prompts", Json::array({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12})}};
  const Json suite{{"cases", 18}, {"ok", 9}, {"success", 0.5}, {"success_low", 0.29}, {"success_high", 0.71}};
  base.tasks = q.tasks = {{"suites", {{"structured", suite}}}, {"cases", {{{"suite", "structured"}, {"id", "a"}, {"ok", false}, {"why", "schema: <b>"}}}}};
  q.inspect = {{"layers", {{{"plugin", "p"}, {"scheme", "s"}, {"kernel", "k"}, {"tier", "native"}, {"bytes", 10}}, {{"plugin", "p"}, {"scheme", "s"}, {"kernel", "k"}, {"tier", "native"}, {"bytes", 20}}}}};
  return {base, q};
}

TEST(Report, RatiosAreOfTheSameRound) {
  const Json r = make_report("T", {{"started", "now"}}, two_arms(), "");
  const Json& one = r["arms"][1]["levels"][0];
  EXPECT_DOUBLE_EQ(one["tok_s"]["value"].get<double>(), 135);
  EXPECT_DOUBLE_EQ(one["tok_s_ratio"]["value"].get<double>(), 1.5);
  EXPECT_DOUBLE_EQ(one["tok_s_ratio"]["low"].get<double>(), 1.5);  // though the rounds differ by a quarter
  EXPECT_EQ(one["tok_s_ratio"]["difference_shown"], true);
  EXPECT_EQ(r["arms"][1]["levels"][1]["tok_s_ratio"]["difference_shown"], false);
  EXPECT_FALSE(r["arms"][0]["levels"][0].contains("tok_s_ratio"));
  EXPECT_EQ(r["arms"][1]["format"][0]["layers"], 2);
  EXPECT_EQ(r["arms"][1]["format"][0]["bytes"], 30);
  EXPECT_EQ(r["arms"][1]["quality"]["greedy_of"], 12);
  EXPECT_EQ(r["arms"][1]["quality"]["ppl_difference_shown"], false);
}

TEST(Report, ThePageHoldsEverythingAndNamesAreText) {
  const Json r = make_report("A & B", {{"started", "now"}}, two_arms(), "");
  const std::string page = report_page(r);
  for (const char* part : {"<title>A &amp; B</title>", "fast &amp; &lt;small&gt;", "schema: &lt;b&gt;", "1.50x", "no difference shown", "class=\"warn\"", "<svg", "7 of 12"}) EXPECT_NE(page.find(part), std::string::npos) << part;
  for (const char* part : {"<small>&", "<b>\"", "<script", "fast & "}) EXPECT_EQ(page.find(part), std::string::npos) << part;
  const std::string text = report_markdown(r);
  for (const char* part : {"# A & B", "| bf16 |", "1.50x", "kl_mean_ok 0.01"}) EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
  EXPECT_EQ(report_pictures(r).size(), 3u);
}

TEST(Report, WithoutAnswersSaysWhy) {
  auto arms = two_arms();
  for (auto& a : arms) a.ppl = a.kl = a.greedy = a.tasks = nullptr;
  const Json r = make_report("T", {{"started", "now"}}, arms, "The weights are random.");
  EXPECT_FALSE(r["arms"][1].contains("quality"));
  EXPECT_NE(report_page(r).find("The weights are random."), std::string::npos);
  EXPECT_NE(report_markdown(r).find("The weights are random."), std::string::npos);
  EXPECT_EQ(report_pictures(r).size(), 2u);
}

TEST(Report, AMeasurementThatFailedLeavesAnEmptyCell) {
  auto arms = two_arms();
  arms[1].speed.clear();
  arms[1].kl = nullptr;
  const Json r = make_report("T", {{"started", "now"}}, arms, "");
  EXPECT_TRUE(r["arms"][1]["levels"].empty());
  EXPECT_NE(report_page(r).find("bf16"), std::string::npos);
  EXPECT_NE(report_markdown(r).find("| - |"), std::string::npos);
}

TEST(Report, AgreesWithAnotherWhereTheIntervalsMeet) {
  const Json a = make_report("T", {{"started", "now"}}, two_arms(), "");
  EXPECT_TRUE(compare_reports(a, a).list.empty());
  EXPECT_GT(compare_reports(a, a).compared, 10);
  auto arms = two_arms();
  for (Json& s : arms[1].speed) s["levels"][0]["output_tok_s"] = s["levels"][0]["output_tok_s"].get<double>() * 2;
  arms[1].kl["kld"]["mean"] = 0.02;
  const Disagreements d = compare_reports(a, make_report("T", {{"started", "now"}}, arms, ""));
  std::string figures;
  for (const Json& x : d.list) figures += x["figure"].get<std::string>() + ";";
  EXPECT_EQ(figures, "tok_s at 1;tok_s_ratio at 1;kl_mean;");
}

}  // namespace
}  // namespace qengine
