#include "core/chart/charts.hpp"
#include "core/report/report.hpp"

namespace qengine {

std::vector<std::pair<std::string, std::string>> report_pictures(const ReportJson& r) {
  std::vector<std::pair<std::string, std::string>> out;
  std::vector<ChartSeries> speed, answers;
  std::vector<ChartBar> memory;
  constexpr double kContext = 8192;
  for (const ReportJson& a : r["arms"]) {
    const std::string name = a["name"];
    ChartSeries s{name, {}};
    for (const ReportJson& l : a["levels"])
      if (l.contains("tok_s")) s.points.push_back({l["concurrency"].get<double>(), l["tok_s"]["value"].get<double>(), l["tok_s"]["low"].get<double>(), l["tok_s"]["high"].get<double>()});
    if (!s.points.empty()) speed.push_back(std::move(s));
    const double weights = a.contains("weights_bytes") ? a["weights_bytes"].get<double>() / (1 << 30) : 0;
    if (a.contains("quality") && a["quality"].contains("kl_mean") && a["quality"]["kl_mean"].get<double>() > 0 && weights > 0) {
      const double kl = a["quality"]["kl_mean"].get<double>(), e = 1.96 * a["quality"]["kl_mean_error"].get<double>();
      answers.push_back({name, {{weights, kl, kl - e, kl + e}}});
    } else {
      answers.push_back({name, {}});  // keeps its colour
    }
    if (weights > 0 && a.contains("kv")) memory.push_back({name, {weights, a["kv"]["bytes_per_token"].get<double>() * kContext / (1 << 30)}});
  }
  if (!speed.empty()) out.emplace_back("speed", line_chart({"Output tokens a second", "requests at once", "tok/s", speed[0].points.size() > 1, false}, speed));
  bool any = false;
  for (const ChartSeries& s : answers) any |= !s.points.empty();
  if (any) out.emplace_back("answers", dot_chart({"What a format costs in answers, and what it weighs (lower left is better)", "weights, GiB", "mean KL divergence from the first arm", false, true}, answers));
  if (!memory.empty()) out.emplace_back("memory", bar_chart("Memory: weights and the cache of 8,192 tokens", "GiB", {"weights", "KV cache"}, memory));
  return out;
}

}  // namespace qengine
