#include "tests/support/program.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>

#include "tests/support/paths.hpp"

namespace qengine::test {

Outcome run(std::vector<std::string> args) { return run(Launch{.args = std::move(args)}); }

Outcome run(const Launch& launch) {
  const std::string program = launch.program.empty() ? (binary_dir() / "bin/qengine").string() : launch.program;
  std::vector<std::string> words{program}, settings;
  words.insert(words.end(), launch.args.begin(), launch.args.end());
  for (const char* keep : {"PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "ASAN_OPTIONS", "LSAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS"})
    if (const char* value = std::getenv(keep)) settings.push_back(std::string(keep) + "=" + value);
  for (const auto& [k, v] : launch.environment) settings.push_back(k + "=" + v);
  std::vector<char*> argv, envp;
  for (std::string& w : words) argv.push_back(w.data());
  for (std::string& s : settings) envp.push_back(s.data());
  argv.push_back(nullptr);
  envp.push_back(nullptr);

  int in[2], out[2], err[2];
  if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC)) throw std::runtime_error("pipe");
  if (launch.close_stdout) close(out[0]);
  const pid_t child = fork();
  if (child == 0) {
    if (launch.input.empty()) dup2(open("/dev/null", O_RDONLY), 0);
    else dup2(in[0], 0);
    dup2(out[1], 1);
    dup2(err[1], 2);
    signal(SIGPIPE, SIG_DFL);
    execve(argv[0], argv.data(), envp.data());
    _exit(127);
  }
  close(in[0]);
  close(out[1]);
  close(err[1]);
  signal(SIGPIPE, SIG_IGN);
  std::size_t written = 0;
  while (written < launch.input.size()) {
    const ssize_t n = write(in[1], launch.input.data() + written, launch.input.size() - written);
    if (n <= 0) break;
    written += static_cast<std::size_t>(n);
  }
  close(in[1]);

  Outcome o;
  bool signalled = false;
  pollfd fds[2] = {{launch.close_stdout ? -1 : out[0], POLLIN, 0}, {err[0], POLLIN, 0}};
  while (fds[0].fd >= 0 || fds[1].fd >= 0) {
    poll(fds, 2, -1);
    for (int i = 0; i < 2; ++i) {
      if (fds[i].fd < 0 || fds[i].revents == 0) continue;
      char buffer[1 << 16];
      const ssize_t n = read(fds[i].fd, buffer, sizeof buffer);
      if (n <= 0) {
        close(fds[i].fd);
        fds[i].fd = -1;
        continue;
      }
      (i == 0 ? o.out : o.err).append(buffer, static_cast<std::size_t>(n));
      if (i == 0 && launch.signal_after_output && !signalled) {
        signalled = true;
        kill(child, launch.signal_after_output);
      }
    }
  }
  int status = 0;
  rusage use{};
  wait4(child, &status, 0, &use);
  o.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  o.cpu_s = static_cast<double>(use.ru_utime.tv_sec + use.ru_stime.tv_sec) + 1e-6 * static_cast<double>(use.ru_utime.tv_usec + use.ru_stime.tv_usec);
  return o;
}

}  // namespace qengine::test
