// stdout, stderr, progress and signals: how the program behaves at its edges.
#include <signal.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "apps/qengine/command.hpp"
#include "core/base/build_info.hpp"
#include "core/base/log.hpp"

namespace qengine {
namespace {

std::atomic<bool> stop_requested{false};
std::atomic<int> stop_signal{0};
std::atomic<int> graceful{0};

// timeout(1), a terminal and a shell that passes signals on can deliver one interrupt twice, to the process and to its group: a
// second one counts only when a person could have meant it.
constexpr std::int64_t kSameInterruptNs = 300'000'000;
std::atomic<std::int64_t> stop_time_ns{0};

void on_stop(int signal) {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);  // allowed in a signal handler
  const std::int64_t now = std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
  if (graceful.load() > 0) {
    std::int64_t first = 0;
    if (stop_time_ns.compare_exchange_strong(first, now)) {
      stop_signal.store(signal);
      stop_requested.store(true);
      return;
    }
    if (now - first < kSameInterruptNs) return;
  }
  _exit(128 + signal);
}

}  // namespace

// ---- stdout ----------------------------------------------------------------------------------------

void print(std::string_view text) {
  const bool ok = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (ok) return;
  if (errno == EPIPE) _exit(0);
  throw Error("E108", std::string("cannot write to stdout: ") + std::strerror(errno));
}

nlohmann::ordered_json json_document(const Command& command) {
  const BuildInfo& b = build_info();
  std::string name = command.name;
  for (char& c : name)
    if (c == ' ') c = '_';
  nlohmann::ordered_json build{{"commit", b.commit}, {"compiler", b.compiler}, {"flags", b.flags}};
  if (!b.cuda.empty()) build["cuda"] = b.cuda;
  build["plugin_abi"] = std::to_string(b.abi_major) + "." + std::to_string(b.abi_minor);
  return {{"schema", "qengine." + name + "/1"}, {"version", b.version}, {"build", build}};
}

void print_json(const nlohmann::ordered_json& document) {
  print(document.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

// ---- stderr ----------------------------------------------------------------------------------------

bool stderr_is_terminal() { return isatty(STDERR_FILENO); }

bool colour(int fd) {
  const char* no = std::getenv("NO_COLOR");
  return isatty(fd) && (!no || !*no);
}

int terminal_width(int fd) {
  winsize size{};
  if (isatty(fd) && ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col >= 40) return std::min<int>(size.ws_col, 110);
  return 100;
}

void note(const Invocation& in, std::string_view line) {
  if (!in.quiet()) std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
}

struct Progress::State {
  std::string what;
  bool on, bar, lines, shown = false;
  int tenth = 0;
  std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now(), last{};
};

Progress::Progress(const Invocation& in, std::string what, bool lines)
    : state_(new State{std::move(what), !in.quiet() && !in.json() && in.values.flag("progress"), stderr_is_terminal(), lines}) {}

Progress::~Progress() {
  done();
  delete state_;
}

void Progress::at(double fraction, std::string_view detail) {
  using namespace std::chrono;
  State& s = *state_;
  const auto now = steady_clock::now();
  if (!s.on || now - s.begin < seconds(1)) return;
  if (s.bar) {
    if (now - s.last < milliseconds(80) && fraction < 1) return;
    s.last = now;
    constexpr int kCells = 24;
    const int full = static_cast<int>(fraction * kCells + 0.5);
    std::string cells = std::string(full, '#') + std::string(kCells - full, '.');
    const int room = std::max(0, terminal_width(STDERR_FILENO) - static_cast<int>(s.what.size()) - kCells - 12);
    std::fprintf(stderr, "\r\033[K%s [%s] %3.0f %%  %.*s", s.what.c_str(), cells.c_str(), fraction * 100,
                 std::min(room, static_cast<int>(detail.size())), detail.data());
    std::fflush(stderr);
    s.shown = true;
  } else if (const int tenth = static_cast<int>(fraction * 10); s.lines && tenth > s.tenth) {
    s.tenth = tenth;
    std::fprintf(stderr, "%s: %d %%\n", s.what.c_str(), tenth * 10);
  }
}

void Progress::done() {
  if (state_->shown) std::fputs("\r\033[K", stderr);
  state_->shown = false;
  state_->on = false;
}

// ---- signals ---------------------------------------------------------------------------------------

GracefulStop::GracefulStop() { graceful.fetch_add(1); }
GracefulStop::~GracefulStop() { graceful.fetch_sub(1); }
const std::atomic<bool>& GracefulStop::requested() { return stop_requested; }
void GracefulStop::forget() {
  stop_requested.store(false);
  stop_time_ns.store(0);
}
int GracefulStop::exit_code() { return 128 + stop_signal.load(); }

void install_stop_handlers() {
  struct sigaction action {};
  action.sa_handler = on_stop;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);  // writes fail with EPIPE, and print() ends the program quietly
  signal(SIGXFSZ, SIG_IGN);  // and with EFBIG above the limit of ulimit -f
}

}  // namespace qengine
