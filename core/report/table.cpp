#include "core/report/table.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace qengine::report {
namespace {

using Json = ReportJson;

// A figure with about as many digits as its size deserves.
std::string figure(double x) { return digits(x, x >= 100 ? 0 : x >= 10 ? 1 : 2); }

std::string range(const Json& i) {
  if (i["low"] == i["high"]) return {};
  return figure(i["low"].get<double>()) + "-" + figure(i["high"].get<double>());
}

std::string times(const Json& level, const std::string& name) {
  const auto it = level.find(name + "_ratio");
  if (it == level.end()) return {};
  std::string out = digits((*it)["value"].get<double>(), 2) + "x";
  if ((*it)["low"] != (*it)["high"]) out += " (" + digits((*it)["low"].get<double>(), 2) + "-" + digits((*it)["high"].get<double>(), 2) + ")";
  if (!it->value("difference_shown", false) && (*it)["low"] != (*it)["high"]) out += " no difference shown";
  return out;
}

std::string percent(double share, int decimals = 0) { return digits(100 * share, decimals) + " %"; }

}  // namespace

std::string digits(double x, int n) {
  char text[48];
  std::snprintf(text, sizeof text, "%.*f", n, x);
  return text;
}

std::string significant(double x, int n) {
  char text[48];
  std::snprintf(text, sizeof text, "%.*g", n, x);
  return text;
}

std::string gib(double bytes) { return digits(bytes / (1 << 30), bytes < 10.0 * (1 << 30) ? 3 : 1); }

Table speed_table(const Json& report) {
  Table t;
  t.columns = {{"arm", "which format"}, {"load s", "median of the rounds"}, {"weights GiB", "as held in memory"}, {"KV tokens", "tokens that the cache holds"}};
  const Json& arms = report["arms"];
  const Json none = Json::array();
  const Json& levels = arms.empty() ? none : arms[0]["levels"];
  for (const Json& l : levels) t.columns.push_back({"tok/s at " + l["concurrency"].dump(), "output tokens a second, all requests together; ratio to the first arm"});
  if (!levels.empty()) {
    const std::string first = levels.front()["concurrency"].dump(), last = levels.back()["concurrency"].dump();
    t.columns.push_back({"ITL ms at " + first, "median time between tokens"});
    t.columns.push_back({"TTFT ms at " + first + (levels.size() > 1 ? " / " + last : ""), "median time to the first token"});
    t.columns.push_back({"of bandwidth", "share of the memory's read bandwidth that decode at " + first + " uses"});
  }
  for (const Json& a : arms) {
    std::vector<Cell> row{{a["name"].get<std::string>(), "", ""}};
    row.push_back(a.contains("load_s") ? Cell{digits(a["load_s"]["value"].get<double>(), 2), "", ""} : Cell{"-", "", ""});
    Cell weights{a.contains("weights_bytes") ? gib(a["weights_bytes"].get<double>()) : "-", "", ""};
    if (&a != &arms[0] && a.contains("weights_bytes") && arms[0].contains("weights_bytes")) weights.detail = digits(a["weights_bytes"].get<double>() / arms[0]["weights_bytes"].get<double>(), 2) + "x";
    row.push_back(weights);
    row.push_back({a.contains("kv_tokens") ? std::to_string(a["kv_tokens"].get<std::int64_t>()) : "-", a.contains("kv") ? a["kv"]["bytes_per_token"].dump() + " B each" : "", ""});
    for (const Json& base : levels) {
      Cell c{"-", "", ""};
      for (const Json& l : a["levels"])
        if (l["concurrency"] == base["concurrency"] && l.contains("tok_s")) {
          c.text = figure(l["tok_s"]["value"].get<double>());
          const std::string r = times(l, "tok_s");
          c.detail = range(l["tok_s"]) + (r.empty() ? "" : (l["tok_s"]["low"] == l["tok_s"]["high"] ? "" : "; ") + r);
        }
      row.push_back(c);
    }
    if (!levels.empty()) {
      const auto value = [&](const Json& level, const char* name) -> std::string {
        for (const Json& l : a["levels"])
          if (l["concurrency"] == level["concurrency"] && l.contains(name)) return figure(l[name]["value"].get<double>());
        return "-";
      };
      row.push_back({value(levels.front(), "itl_ms"), "", ""});
      row.push_back({value(levels.front(), "ttft_ms") + (levels.size() > 1 ? " / " + value(levels.back(), "ttft_ms") : ""), "", ""});
      Cell share{"-", "", ""};
      for (const Json& l : a["levels"])
        if (l["concurrency"] == levels.front()["concurrency"] && l.contains("bandwidth_share")) {
          const double x = l["bandwidth_share"]["value"].get<double>();
          share = x > 1.1 ? Cell{"> 100 %", "from the processor's cache", ""} : Cell{percent(x), "", ""};
        }
      row.push_back(share);
    }
    t.rows.push_back(std::move(row));
  }
  return t;
}

Table quality_table(const Json& report) {
  Table t;
  if (report.contains("no_quality")) return t;
  t.columns = {{"arm", "which format"}, {"PPL", "perplexity of the text, one standard error"}, {"KL mean", "mean divergence of the next-token distribution from the first arm's"}, {"KL 99 %", "of the worst hundredth of the tokens"},
               {"same top", "tokens where the likeliest next token is the same"}, {"greedy equal", "answers of 128 tokens that are equal, of the prompts built in"}, {"JSON ok", "structured extractions that succeed"},
               {"tools ok", "tool calls that succeed"}, {"verdict", "by the thresholds of docs/eval.md or [gates]"}};
  for (const Json& a : report["arms"]) {
    const Json& q = a["quality"];
    std::vector<Cell> row{{a["name"].get<std::string>(), "", ""}};
    row.push_back(q.contains("ppl") ? Cell{digits(q["ppl"].get<double>(), 2), "± " + digits(q.value("ppl_error", 0.0), 2) + (q.contains("ppl_ratio") ? ", " + digits(100 * (q["ppl_ratio"].get<double>() - 1), 2) + " %" + (q.value("ppl_difference_shown", true) ? "" : ", no difference shown") : ""), ""} : Cell{"-", "", ""});
    const bool base = !q.contains("kl_mean");
    row.push_back(base ? Cell{"-", "", ""} : Cell{significant(q["kl_mean"].get<double>(), 3), "± " + significant(q["kl_mean_error"].get<double>(), 2), ""});
    row.push_back(base ? Cell{"-", "", ""} : Cell{significant(q["kl_p99"].get<double>(), 3), "", ""});
    row.push_back(base ? Cell{"-", "", ""} : Cell{percent(q["same_top"].get<double>(), 1), "", ""});
    row.push_back(q.contains("greedy_equal") ? Cell{q["greedy_equal"].dump() + " of " + q["greedy_of"].dump(), q.value("greedy_ties", 0) > 0 ? q["greedy_ties"].dump() + " part at a tie" : "", ""} : Cell{"-", "", ""});
    for (const char* suite : {"structured", "tools"})
      row.push_back(q.contains(suite) ? Cell{q[suite]["ok"].dump() + " of " + q[suite]["of"].dump(), percent(q[suite]["low"].get<double>()) + " to " + percent(q[suite]["high"].get<double>()), ""} : Cell{"-", "", ""});
    const std::string verdict = q.value("verdict", std::string());
    std::string why;
    if (q.contains("reasons"))
      for (const Json& r : q["reasons"]) why += (why.empty() ? "" : "; ") + r["gate"].get<std::string>() + " " + significant(r["value"].get<double>(), 3) + ", limit " + significant(r["limit"].get<double>(), 3);
    row.push_back({verdict.empty() ? "-" : verdict, why, verdict});
    t.rows.push_back(std::move(row));
  }
  return t;
}

std::vector<std::string> findings(const Json& report) {
  std::vector<std::string> out;
  const Json& arms = report["arms"];
  if (arms.size() < 2) return out;
  const std::string base = arms[0]["name"];
  const auto speed = [](const Json& a, bool first) -> const Json* {
    if (a["levels"].empty()) return nullptr;
    const Json& l = first ? a["levels"].front() : a["levels"].back();
    return l.contains("tok_s_ratio") ? &l : nullptr;
  };
  const Json *smallest = nullptr, *fastest = nullptr, *closest = nullptr;
  for (std::size_t i = 1; i < arms.size(); ++i) {
    const Json& a = arms[i];
    if (a.contains("weights_bytes") && (!smallest || a["weights_bytes"] < (*smallest)["weights_bytes"])) smallest = &a;
    if (speed(a, true) && (!fastest || (*speed(a, true))["tok_s_ratio"]["value"].get<double>() > (*speed(*fastest, true))["tok_s_ratio"]["value"].get<double>())) fastest = &a;
    if (a.contains("quality") && a["quality"].contains("kl_mean") && (!closest || a["quality"]["kl_mean"].get<double>() < (*closest)["quality"]["kl_mean"].get<double>())) closest = &a;
  }
  if (smallest && arms[0].contains("weights_bytes") && arms[0]["weights_bytes"].get<double>() > 0)
    out.push_back("Smallest: " + (*smallest)["name"].get<std::string>() + ", " + gib((*smallest)["weights_bytes"].get<double>()) + " GiB of weights, " + digits((*smallest)["weights_bytes"].get<double>() / arms[0]["weights_bytes"].get<double>(), 2) + " of " + base + ".");
  if (fastest) {
    const Json &one = *speed(*fastest, true), &many = *speed(*fastest, false);
    out.push_back("Fastest with " + one["concurrency"].dump() + " request" + (one["concurrency"] == 1 ? "" : "s") + ": " + (*fastest)["name"].get<std::string>() + ", " + digits(one["tok_s_ratio"]["value"].get<double>(), 2) + " times " + base +
                  (fastest->at("levels").size() > 1 ? "; with " + many["concurrency"].dump() + " it is " + digits(many["tok_s_ratio"]["value"].get<double>(), 2) + " times" : "") + ".");
  }
  if (closest) out.push_back("Closest in its answers: " + (*closest)["name"].get<std::string>() + ", mean KL divergence " + significant((*closest)["quality"]["kl_mean"].get<double>(), 2) + ", the same likeliest token in " + percent((*closest)["quality"]["same_top"].get<double>(), 1) + " of the text.");
  std::string bad;
  for (const Json& a : arms)
    if (a.contains("quality") && a["quality"].value("verdict", std::string()) == "fail") bad += (bad.empty() ? "" : ", ") + a["name"].get<std::string>();
  if (!bad.empty()) out.push_back("Not to be used as it is (verdict: fail): " + bad + ".");
  return out;
}

}  // namespace qengine::report
