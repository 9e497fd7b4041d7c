#include "apps/qengine/child.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

#include "core/base/error.hpp"

namespace qengine {
namespace {

constexpr std::size_t kTailLines = 12;

void read_all(int fd, const std::function<void(std::string_view)>& take) {
  char buffer[1 << 14];
  for (;;) {
    const ssize_t n = read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    take({buffer, static_cast<std::size_t>(n)});
  }
  close(fd);
}

}  // namespace

std::vector<std::string> flags_of(const Values& values, const std::vector<const SettingGroup*>& groups, const std::vector<std::string>& without) {
  std::vector<std::string> out;
  for (const SettingGroup* group : groups)
    for (const Setting& s : group->settings) {
      if (!values.knows(s.name) || !values.given(s.name) || std::find(without.begin(), without.end(), s.name) != without.end()) continue;
      for (const std::string& text : values.at(s.name).texts) out.push_back("--" + std::string(s.name) + "=" + text);
    }
  if (values.knows("config") && values.has("config") && std::find(without.begin(), without.end(), "config") == without.end()) out.push_back("--config=" + values.text("config"));
  return out;
}

struct Child::Impl {
  pid_t pid = -1;
  bool reaped = false;
  int code = -1;
  std::string out;
  mutable std::mutex mutex;
  std::deque<std::string> tail;
  std::function<void(const std::string&)> on_line;
  std::thread out_thread, error_thread;

  void line(std::string text) {
    if (!text.empty() && text.back() == '\r') text.pop_back();
    if (on_line) on_line(text);
    const std::lock_guard lock(mutex);
    tail.push_back(std::move(text));
    if (tail.size() > kTailLines) tail.pop_front();
  }
  bool reap(int flags) {
    if (reaped) return true;
    int status = 0;
    pid_t done;
    while ((done = waitpid(pid, &status, flags)) < 0 && errno == EINTR) {
    }
    if (done != pid) return false;
    reaped = true;
    code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return true;
  }
};

Child::Child(std::vector<std::string> args, std::function<void(const std::string&)> on_error_line) : impl_(std::make_unique<Impl>()) {
  impl_->on_line = std::move(on_error_line);
  args.insert(args.begin(), "qengine");
  std::vector<char*> argv;
  for (std::string& a : args) argv.push_back(a.data());
  argv.push_back(nullptr);
  int out[2], err[2];
  if (pipe2(out, O_CLOEXEC) != 0) throw Error("E000", std::string("no pipe: ") + std::strerror(errno));
  if (pipe2(err, O_CLOEXEC) != 0) {
    close(out[0]), close(out[1]);
    throw Error("E000", std::string("no pipe: ") + std::strerror(errno));
  }
  const pid_t parent = getpid();
  impl_->pid = fork();
  if (impl_->pid == 0) {
    // Between fork and exec: nothing but system calls.
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1);
    setpgid(0, 0);  // a terminal's Ctrl-C is ours to pass on
    const int null = open("/dev/null", O_RDONLY);
    dup2(null, STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    execv("/proc/self/exe", argv.data());
    _exit(127);
  }
  const int failed = errno;
  close(out[1]);
  close(err[1]);
  if (impl_->pid < 0) {
    close(out[0]), close(err[0]);
    throw Error("E000", std::string("cannot start a process: ") + std::strerror(failed));
  }
  impl_->out_thread = std::thread([impl = impl_.get(), fd = out[0]] { read_all(fd, [&](std::string_view s) { impl->out.append(s); }); });
  impl_->error_thread = std::thread([impl = impl_.get(), fd = err[0]] {
    std::string rest;
    read_all(fd, [&](std::string_view s) {
      rest.append(s);
      std::size_t begin = 0;
      for (std::size_t end; (end = rest.find('\n', begin)) != rest.npos; begin = end + 1) impl->line(rest.substr(begin, end - begin));
      rest.erase(0, begin);
    });
    if (!rest.empty()) impl->line(std::move(rest));
  });
}

Child::~Child() {
  if (impl_->pid > 0 && !impl_->reap(WNOHANG)) {
    kill(impl_->pid, SIGTERM);
    for (int i = 0; i < 500 && !impl_->reap(WNOHANG); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (!impl_->reaped) kill(impl_->pid, SIGKILL), impl_->reap(0);
  }
  if (impl_->out_thread.joinable()) impl_->out_thread.join();
  if (impl_->error_thread.joinable()) impl_->error_thread.join();
}

int Child::wait(const std::atomic<bool>* stop) {
  bool told = false;
  while (!impl_->reap(WNOHANG)) {
    if (stop && *stop && !told) told = true, kill(impl_->pid, SIGINT);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  if (impl_->out_thread.joinable()) impl_->out_thread.join();
  if (impl_->error_thread.joinable()) impl_->error_thread.join();
  return impl_->code;
}

bool Child::running() { return !impl_->reap(WNOHANG); }
void Child::terminate() {
  if (running()) kill(impl_->pid, SIGTERM);
}

const std::string& Child::out() const { return impl_->out; }
std::string Child::error_tail() const {
  const std::lock_guard lock(impl_->mutex);
  std::string text;
  for (const std::string& l : impl_->tail) text += (text.empty() ? "" : "\n") + l;
  return text;
}

}  // namespace qengine
