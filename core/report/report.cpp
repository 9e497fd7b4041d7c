#include "core/report/report.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "core/eval/intervals.hpp"

namespace qengine {
namespace {

using Json = ReportJson;

Json json_of(const Interval& i) { return {{"value", i.value}, {"low", i.low}, {"high", i.high}}; }

const Json* level_of(const Json& run, const Json& concurrency) {
  if (run.contains("levels"))
    for (const Json& l : run["levels"])
      if (l["concurrency"] == concurrency) return &l;
  return nullptr;
}

// A figure of one level over the rounds; empty where any round lacks it.
std::vector<double> over_rounds(const std::vector<Json>& rounds, const Json& concurrency, const char* key, const char* part) {
  std::vector<double> out;
  for (const Json& run : rounds) {
    const Json* l = level_of(run, concurrency);
    if (!l || !l->contains(key)) return {};
    out.push_back(part ? (*l)[key][part].get<double>() : (*l)[key].get<double>());
  }
  return out;
}

Json speed_of(const ArmPieces& arm, const ArmPieces& base) {
  Json levels = Json::array();
  if (arm.speed.empty() || !arm.speed[0].contains("levels")) return levels;
  for (const Json& first : arm.speed[0]["levels"]) {
    const Json& c = first["concurrency"];
    Json l{{"concurrency", c}};
    const auto put = [&](const char* name, const char* key, const char* part) {
      const auto ours = over_rounds(arm.speed, c, key, part), theirs = over_rounds(base.speed, c, key, part);
      if (ours.empty()) return;
      l[name] = json_of(median_interval(ours));
      // Rounds pair up: the n-th of each arm ran next to each other.
      if (&arm == &base || theirs.size() != ours.size() || std::any_of(theirs.begin(), theirs.end(), [](double x) { return !(x > 0); })) return;
      const Interval ratio = ratio_interval(ours, theirs);
      l[std::string(name) + "_ratio"] = json_of(ratio);
      l[std::string(name) + "_ratio"]["difference_shown"] = !ratio.holds(1) && ours.size() > 1;
    };
    put("tok_s", "output_tok_s", nullptr);
    put("ttft_ms", "ttft_ms", "median");
    put("itl_ms", "itl_ms", "median");
    put("bandwidth_share", "bandwidth_share", nullptr);
    levels.push_back(std::move(l));
  }
  return levels;
}

template <class T>
void take(Json& to, const char* name, const Json& from, const char* key) {
  if (from.is_object() && from.contains(key)) to[name] = from[key].template get<T>();
}

Json quality_of(const ArmPieces& a, bool base) {
  Json q = Json::object();
  take<double>(q, "ppl", a.ppl, "ppl");
  take<double>(q, "ppl_error", a.ppl, "ppl_error");
  take<std::int64_t>(q, "scored_tokens", a.ppl, "tokens");
  if (!base && a.kl.is_object()) {
    take<double>(q, "ppl", a.kl, "ppl_q");
    take<double>(q, "ppl_error", a.kl, "ppl_q_error");
    take<double>(q, "ppl_ratio", a.kl, "ppl_ratio");
    take<double>(q, "ppl_ratio_error", a.kl, "ppl_ratio_error");
    take<std::int64_t>(q, "scored_tokens", a.kl, "tokens");
    q["kl_mean"] = a.kl["kld"]["mean"];
    q["kl_mean_error"] = a.kl["kld"]["mean_error"];
    q["kl_p99"] = a.kl["kld"]["p99"];
    q["same_top"] = a.kl["same_top_p"];
    q["verdict"] = a.kl["verdict"];
    q["reasons"] = a.kl["reasons"];
    if (const auto r = a.kl.find("ppl_ratio"); r != a.kl.end()) {
      const double ratio = r->get<double>(), error = a.kl.value("ppl_ratio_error", 0.0);
      q["ppl_difference_shown"] = std::fabs(ratio - 1) > 1.96 * error;
    }
  }
  if (!base && a.greedy.is_object() && a.greedy.contains("equal_count")) {
    q["greedy_equal"] = a.greedy["equal_count"];
    q["greedy_of"] = a.greedy["prompts"].size();
    take<std::int64_t>(q, "greedy_ties", a.greedy, "ties");
  }
  if (a.tasks.is_object() && a.tasks.contains("suites"))
    for (const auto& [suite, s] : a.tasks["suites"].items()) q[suite] = {{"ok", s["ok"]}, {"of", s["cases"]}, {"success", s["success"]}, {"low", s["success_low"]}, {"high", s["success_high"]}};
  return q;
}

}  // namespace

Json make_report(const std::string& title, const Json& record, const std::vector<ArmPieces>& arms, const std::string& no_quality) {
  Json report{{"title", title}, {"record", record}};
  if (!no_quality.empty()) report["no_quality"] = no_quality;
  Json& list = report["arms"] = Json::array();
  for (const ArmPieces& a : arms) {
    const bool base = &a == &arms.front();
    Json j{{"name", a.name}, {"flags", a.flags}};
    if (!a.speed.empty()) {
      const Json& own = a.speed[0]["qengine"];
      std::vector<double> load, peak;
      for (const Json& s : a.speed) load.push_back(s["qengine"]["load_s"].get<double>()), peak.push_back(s["qengine"]["peak_rss_bytes"].get<double>());
      j["load_s"] = json_of(median_interval(load));
      j["weights_bytes"] = own["weights_bytes"];
      j["kv_tokens"] = own["kv_tokens"];
      j["kv"] = own["kv"];
      j["peak_rss_bytes"] = median(peak);
      j["rounds"] = a.speed.size();
      j["valid"] = std::all_of(a.speed.begin(), a.speed.end(), [](const Json& s) { return s.value("valid", true) && s.value("failed", 0) == 0; });
    } else if (a.inspect.is_object()) {
      if (a.inspect.contains("total_bytes")) j["weights_bytes"] = a.inspect["total_bytes"];
      if (a.inspect.contains("kv")) j["kv"] = a.inspect["kv"];
    }
    j["levels"] = speed_of(a, arms.front());
    if (no_quality.empty()) j["quality"] = quality_of(a, base);
    if (a.tasks.is_object() && a.tasks.contains("cases")) {
      Json failures = Json::array();
      for (const Json& c : a.tasks["cases"])
        if (!c["ok"].get<bool>()) failures.push_back({{"suite", c["suite"]}, {"id", c["id"]}, {"why", c["why"]}});
      j["task_failures"] = std::move(failures);
    }
    if (a.inspect.is_object() && a.inspect.contains("layers")) {
      // Equal layers once: plugin, scheme, kernel, tier with their number and bytes.
      std::map<std::string, Json> rows;
      std::vector<std::string> order;
      for (const Json& l : a.inspect["layers"]) {
        const std::string key = l["plugin"].get<std::string>() + ":" + l["scheme"].get<std::string>() + "|" + l["kernel"].get<std::string>() + "|" + l["tier"].dump();
        if (!rows.contains(key)) {
          order.push_back(key);
          rows[key] = {{"plugin", l["plugin"]}, {"scheme", l["scheme"]}, {"kernel", l["kernel"]}, {"tier", l["tier"]}, {"layers", 0}, {"bytes", 0}};
        }
        rows[key]["layers"] = rows[key]["layers"].get<std::int64_t>() + 1;
        rows[key]["bytes"] = rows[key]["bytes"].get<std::int64_t>() + l["bytes"].get<std::int64_t>();
      }
      Json& format = j["format"] = Json::array();
      for (const std::string& key : order) format.push_back(rows[key]);
    }
    list.push_back(std::move(j));
  }
  return report;
}

Disagreements compare_reports(const Json& one, const Json& other) {
  Disagreements d;
  const auto interval = [](const Json& j) { return Interval{j["value"].get<double>(), j["low"].get<double>(), j["high"].get<double>()}; };
  const auto check = [&](const std::string& arm, const std::string& figure, const Interval& a, const Interval& b) {
    ++d.compared;
    if (!overlap(a, b)) d.list.push_back({{"arm", arm}, {"figure", figure}, {"this", json_of(a)}, {"other", json_of(b)}});
  };
  for (const Json& a : one["arms"])
    for (const Json& b : other["arms"]) {
      if (a["name"] != b["name"]) continue;
      const std::string arm = a["name"];
      if (a.contains("weights_bytes") && b.contains("weights_bytes")) {
        const double x = a["weights_bytes"].get<double>(), y = b["weights_bytes"].get<double>();
        check(arm, "weights_bytes", {x, x, x}, {y, y, y});
      }
      for (const Json& la : a["levels"])
        for (const Json& lb : b["levels"]) {
          if (la["concurrency"] != lb["concurrency"]) continue;
          for (const char* figure : {"tok_s", "ttft_ms", "itl_ms", "tok_s_ratio"})
            if (la.contains(figure) && lb.contains(figure)) check(arm, std::string(figure) + " at " + la["concurrency"].dump(), interval(la[figure]), interval(lb[figure]));
        }
      if (!a.contains("quality") || !b.contains("quality")) continue;
      for (const char* figure : {"ppl", "kl_mean"}) {
        const std::string error = std::string(figure) + "_error";
        if (!a["quality"].contains(figure) || !b["quality"].contains(figure)) continue;
        const auto around = [&](const Json& q) {
          const double x = q[figure].get<double>(), e = 1.96 * q.value(error, 0.0);
          return Interval{x, x - e, x + e};
        };
        check(arm, figure, around(a["quality"]), around(b["quality"]));
      }
      for (const char* suite : {"structured", "tools"})
        if (a["quality"].contains(suite) && b["quality"].contains(suite)) {
          const auto rate = [&](const Json& q) { return Interval{q[suite]["success"].get<double>(), q[suite]["low"].get<double>(), q[suite]["high"].get<double>()}; };
          check(arm, suite, rate(a["quality"]), rate(b["quality"]));
        }
    }
  return d;
}

}  // namespace qengine
