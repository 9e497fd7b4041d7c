#include "core/conformance/kit.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "core/base/error.hpp"
#include "core/plugin_host/call.hpp"

namespace qengine::conformance {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

// What a check wrote into its pipe, one record a line: "verdict", "why", "note" and a text.
void send(int fd, const std::string& kind, std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  const std::string line = kind + " " + text + "\n";
  for (std::size_t at = 0; at < line.size();) {
    const ssize_t n = write(fd, line.data() + at, line.size() - at);
    if (n <= 0) return;
    at += static_cast<std::size_t>(n);
  }
}

[[noreturn]] void child(const Check& check, const Subject& subject, int fd, int errors) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  setpgid(0, 0);
  dup2(errors, STDERR_FILENO);
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (null >= 0) dup2(null, STDIN_FILENO), dup2(null, STDOUT_FILENO);
  install_crash_handler();
  Notes notes;
  std::string verdict = "passed", why;
  try {
    check.run(subject, notes);
  } catch (const Failed& e) {
    verdict = "failed", why = e.what();
  } catch (const NotApplicable& e) {
    verdict = "skipped", why = e.what();
  } catch (const Error& e) {
    verdict = "failed", why = e.what();
  } catch (const std::exception& e) {
    verdict = "failed", why = e.what();
  }
  for (const std::string& n : notes) send(fd, "note", n);
  if (!why.empty()) send(fd, "why", why);
  send(fd, "verdict", verdict);
  _exit(0);
}

std::string tail(const std::string& text) {
  std::string out = text.substr(text.size() > 1500 ? text.size() - 1500 : 0);
  std::replace(out.begin(), out.end(), '\n', ' ');
  while (!out.empty() && out.front() == ' ') out.erase(out.begin());
  while (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

void run_check(const Check& check, const Subject& subject, Outcome& out) {
  int answers[2], errors[2];
  if (pipe2(answers, O_CLOEXEC) || pipe2(errors, O_CLOEXEC)) throw Error("E000", std::string("no pipe: ") + std::strerror(errno));
  fflush(nullptr);
  const auto begin = Clock::now();
  const pid_t pid = fork();
  if (pid < 0) throw Error("E000", std::string("no process for ") + check.id + ": " + std::strerror(errno));
  if (pid == 0) child(check, subject, answers[1], errors[1]);
  close(answers[1]), close(errors[1]);
  std::string said, complaints;
  bool late = false;
  for (pollfd open[2] = {{answers[0], POLLIN, 0}, {errors[0], POLLIN, 0}}; open[0].fd >= 0 || open[1].fd >= 0;) {
    const double left = check.timeout_s - since(begin);
    if (left <= 0 || poll(open, 2, static_cast<int>(left * 1000) + 1) == 0) {
      late = true;
      kill(-pid, SIGKILL), kill(pid, SIGKILL);
      break;
    }
    for (int i = 0; i < 2; ++i) {
      if (open[i].fd < 0 || !(open[i].revents & (POLLIN | POLLHUP | POLLERR))) continue;
      char buffer[4096];
      const ssize_t n = read(open[i].fd, buffer, sizeof buffer);
      if (n <= 0) open[i].fd = -1;
      else if ((i ? complaints : said).size() < (1 << 20)) (i ? complaints : said).append(buffer, static_cast<std::size_t>(n));
    }
  }
  close(answers[0]), close(errors[0]);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  out.seconds = since(begin);
  std::string verdict;
  for (std::size_t at = 0; at < said.size();) {
    const std::size_t end = std::min(said.find('\n', at), said.size());
    const std::string line = said.substr(at, end - at);
    at = end + 1;
    const auto space = line.find(' ');
    const std::string kind = line.substr(0, space), rest = space == line.npos ? "" : line.substr(space + 1);
    if (kind == "note") out.notes.push_back(rest);
    if (kind == "why") out.why = rest;
    if (kind == "verdict") verdict = rest;
  }
  if (late) {
    out.verdict = Verdict::kFailed;
    out.why = "it does not come back within " + std::to_string(check.timeout_s) + " s";
  } else if (WIFSIGNALED(status) || verdict.empty() || (WIFEXITED(status) && WEXITSTATUS(status) != 0)) {
    out.verdict = Verdict::kFailed;
    out.why = WIFSIGNALED(status) ? std::string("the process dies of ") + strsignal(WTERMSIG(status)) : "the process ends without an answer (exit " + std::to_string(WEXITSTATUS(status)) + ")";
    if (const std::string last = tail(complaints); !last.empty()) out.why += ": " + last;
  } else {
    out.verdict = verdict == "passed" ? Verdict::kPassed : verdict == "failed" ? Verdict::kFailed : Verdict::kNotApplicable;
  }
}

const char* word(Verdict v) {
  switch (v) {
    case Verdict::kPassed: return "pass";
    case Verdict::kFailed: return "FAIL";
    case Verdict::kNotApplicable: return "skip";
    default: return "blocked";
  }
}

std::string xml(const std::string& s) {
  std::string out;
  for (const char c : s) {
    if (c == '&') out += "&amp;";
    else if (c == '<') out += "&lt;";
    else if (c == '>') out += "&gt;";
    else if (c == '"') out += "&quot;";
    else if (static_cast<unsigned char>(c) >= 0x20 || c == '\t') out += c;
    else out += ' ';
  }
  return out;
}

}  // namespace

int Report::count(Verdict v) const {
  return static_cast<int>(std::count_if(outcomes.begin(), outcomes.end(), [&](const Outcome& o) { return o.verdict == v; }));
}

Report run_kit(const Subject& subject, const std::vector<std::string>& only) {
  Report report;
  report.library = subject.library.string();
  try {
    const Manifest m = subject.manifest();
    report.id = m.plugin.id, report.name = m.plugin.name, report.version = m.plugin.version;
  } catch (const Error&) {  // QEP-203 says so
  }
  const auto begin = Clock::now();
  std::string gate;
  for (const Check& c : all_checks()) {
    const bool asked = only.empty() || std::find(only.begin(), only.end(), c.id) != only.end() || std::find(only.begin(), only.end(), c.group) != only.end();
    if (!asked && !c.gate) continue;
    Outcome o{c.id, c.group, c.sentence, Verdict::kPassed, {}, {}, 0};
    if (!gate.empty()) {
      o.verdict = Verdict::kBlocked;
      o.why = gate + " failed";
    } else if (c.rests_on_all && report.count(Verdict::kFailed)) {
      o.verdict = Verdict::kBlocked;
      o.why = "it rests on the checks before, of which some failed";
    } else {
      run_check(c, subject, o);
      if (c.gate && o.verdict == Verdict::kFailed) gate = c.id;
    }
    if (asked || o.verdict == Verdict::kFailed) report.outcomes.push_back(std::move(o));
  }
  report.seconds = since(begin);
  return report;
}

std::string to_text(const Report& r, bool with_notes) {
  std::string out, group;
  for (const Outcome& o : r.outcomes) {
    if (o.group != group) out += (group.empty() ? "" : "\n") + o.group + "\n";
    group = o.group;
    out += "  " + o.id + "  " + word(o.verdict) + std::string(std::max<std::size_t>(1, 9 - std::strlen(word(o.verdict))), ' ') + o.sentence + "\n";
    if (o.verdict == Verdict::kFailed || (o.verdict != Verdict::kPassed && with_notes)) out += "                    " + o.why + "\n";
    if (with_notes)
      for (const std::string& n : o.notes) out += "                    " + n + "\n";
  }
  out += text("\n%s: %d passed, %d failed, %d not applicable, %d blocked; %.1f s\n", r.name.empty() ? r.library.c_str() : r.name.c_str(), r.count(Verdict::kPassed), r.count(Verdict::kFailed),
              r.count(Verdict::kNotApplicable), r.count(Verdict::kBlocked), r.seconds);
  return out;
}

Json to_json(const Report& r) {
  Json checks = Json::array();
  for (const Outcome& o : r.outcomes) {
    const char* v = o.verdict == Verdict::kPassed ? "passed" : o.verdict == Verdict::kFailed ? "failed" : o.verdict == Verdict::kBlocked ? "blocked" : "not_applicable";
    checks.push_back({{"id", o.id}, {"group", o.group}, {"sentence", o.sentence}, {"verdict", v}, {"why", o.why}, {"notes", o.notes}, {"seconds", o.seconds}});
  }
  return {{"library", r.library}, {"plugin", r.name}, {"plugin_id", r.id}, {"plugin_version", r.version}, {"passed", r.passed()}, {"seconds", r.seconds}, {"checks", checks}};
}

std::string to_junit(const Report& r) {
  std::string out = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
  out += text("<testsuite name=\"%s\" tests=\"%zu\" failures=\"%d\" skipped=\"%d\" time=\"%.3f\">\n", xml(r.name.empty() ? r.library : r.name).c_str(), r.outcomes.size(), r.count(Verdict::kFailed),
              r.count(Verdict::kNotApplicable) + r.count(Verdict::kBlocked), r.seconds);
  for (const Outcome& o : r.outcomes) {
    out += text("  <testcase classname=\"%s\" name=\"%s %s\" time=\"%.3f\">", xml(o.group).c_str(), xml(o.id).c_str(), xml(o.sentence).c_str(), o.seconds);
    if (o.verdict == Verdict::kFailed) out += "<failure message=\"" + xml(o.why) + "\"/>";
    if (o.verdict == Verdict::kNotApplicable || o.verdict == Verdict::kBlocked) out += "<skipped message=\"" + xml(o.why) + "\"/>";
    for (const std::string& n : o.notes) out += "<system-out>" + xml(n) + "</system-out>";
    out += "</testcase>\n";
  }
  return out + "</testsuite>\n";
}

}  // namespace qengine::conformance
