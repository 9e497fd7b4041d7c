#include "apps/qengine/report_pieces.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <thread>

#include "apps/qengine/child.hpp"
#include "core/model/safetensors_writer.hpp"

namespace qengine {
namespace {

namespace fs = std::filesystem;

// Before the first of a kind has been measured, s.
const std::map<std::string, double> kGuess{{"inspect", 0.5}, {"speed", 60}, {"ppl", 20}, {"kl", 40}, {"greedy", 20}, {"tasks", 30}};

std::string duration(double seconds) {
  char text[48];
  if (seconds < 90) std::snprintf(text, sizeof text, "%.0f s", seconds);
  else if (seconds < 5400) std::snprintf(text, sizeof text, "%.0f min", seconds / 60);
  else std::snprintf(text, sizeof text, "%.1f h", seconds / 3600);
  return text;
}

}  // namespace

Pieces::Pieces(fs::path folder, std::vector<Piece> pieces, bool fresh) : folder_(std::move(folder)), pieces_(std::move(pieces)) {
  std::error_code ec;
  fs::create_directories(folder_ / "pieces", ec);
  if (ec) throw Error("E108", "cannot make " + (folder_ / "pieces").string() + ": " + ec.message());
  for (const Piece& p : pieces_) {
    const fs::path file = folder_ / "pieces" / p.file;
    if (fresh || !fs::exists(file, ec)) continue;
    Json j = Json::parse(read_text(file.string()), nullptr, false);
    if (j.is_object() && j.value("identity", std::string()) == p.identity && j.contains("result") && !j["result"].contains("error")) done_[p.file] = std::move(j);
  }
}

double Pieces::left() const {
  double sum = 0;
  for (const Piece& p : pieces_) {
    if (done_.contains(p.file)) continue;
    double same_arm = 0, same_kind = 0, n_arm = 0, n_kind = 0;
    for (const Piece& q : pieces_) {
      const auto it = done_.find(q.file);
      if (it == done_.end() || q.kind != p.kind) continue;
      const double s = it->second.value("seconds", 0.0);
      same_kind += s, ++n_kind;
      if (q.arm == p.arm) same_arm += s, ++n_arm;
    }
    sum += n_arm > 0 ? same_arm / n_arm : n_kind > 0 ? same_kind / n_kind : kGuess.at(p.kind);
  }
  return sum;
}

bool Pieces::run(const Invocation& in, const std::vector<Arm>& arms) {
  using Clock = std::chrono::steady_clock;
  Progress progress(in, "report", /*lines=*/false);
  const std::size_t all = pieces_.size();
  const bool lines = !stderr_is_terminal() && !in.json() && in.values.flag("progress");
  if (!done_.empty()) note(in, std::to_string(done_.size()) + " of " + std::to_string(all) + " measurements are there already");
  for (const Piece& p : pieces_) {
    if (done_.contains(p.file)) continue;
    if (GracefulStop::requested()) return false;
    const std::string what = p.kind + " " + arms[p.arm].name + (p.kind == "speed" ? ", round " + std::to_string(p.round + 1) : "");
    const double remaining = left(), finished = static_cast<double>(done_.size());
    if (lines) note(in, "[" + std::to_string(done_.size() + 1) + "/" + std::to_string(all) + "] " + what + ", about " + duration(remaining) + " left");
    const auto begin = Clock::now();
    const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
    std::vector<std::string> args = p.args;
    args.insert(args.end(), {"--json", "--no-progress"});
    Child child(args);
    while (child.running() && !GracefulStop::requested()) {
      progress.at(std::min(1.0, finished / static_cast<double>(all)), what + ", about " + duration(std::max(0.0, remaining - seconds())) + " left");
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    const int code = child.wait(&GracefulStop::requested());
    if (GracefulStop::requested()) return false;
    Json result = Json::parse(child.out(), nullptr, false);
    if ((code != 0 && code != 6) || !result.is_object() || result.value("interrupted", false)) {  // 6: measured, and a gate failed
      std::string tail = child.error_tail();
      if (tail.empty()) tail = "exit code " + std::to_string(code);
      if (p.must) throw Error("E101", "arm " + arms[p.arm].name + " cannot be loaded").from(tail).in(arms[p.arm].flags_text());
      note(in, what + " failed: " + tail);
      result = {{"error", tail}};
    }
    Json kept{{"identity", p.identity}, {"seconds", seconds()}, {"result", std::move(result)}};
    write_file_safely(folder_ / "pieces" / p.file, kept.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
    done_[p.file] = std::move(kept);
  }
  return true;
}

Json Pieces::result(const std::string& kind, std::size_t arm, int round, std::string* error) const {
  for (const Piece& p : pieces_) {
    if (p.kind != kind || p.arm != arm || p.round != round) continue;
    const auto it = done_.find(p.file);
    if (it == done_.end()) return nullptr;
    const Json& r = it->second["result"];
    if (!r.contains("error")) return r;
    if (error) *error = r["error"].get<std::string>();
  }
  return nullptr;
}

}  // namespace qengine
