#include "apps/qengine/crash.hpp"

#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <initializer_list>

namespace qengine {
namespace {

void write_text(const char* text) {
  if (write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
}

const char* name_of(int signal) {
  switch (signal) {
    case SIGSEGV: return "segmentation fault";
    case SIGBUS: return "bus error (a mapped file may have been truncated)";
    case SIGFPE: return "arithmetic fault";
    case SIGILL: return "illegal instruction";
    default: return "abort";
  }
}

// Only async-signal-safe calls in here.
void on_crash(int signal) {
  write_text("E000 crashed: ");
  write_text(name_of(signal));
  write_text("\n  hint  please report it with the command line and the output of qengine --version\n");
  raise(signal);  // the default action, reset by SA_RESETHAND: a core file where one is wanted
}

}  // namespace

void install_crash_handler() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  alignas(16) static char stack[64 * 1024];  // the ordinary one may be what ran out
  stack_t alternate{};
  alternate.ss_sp = stack;
  alternate.ss_size = sizeof stack;
  sigaltstack(&alternate, nullptr);
  struct sigaction action {};
  action.sa_handler = on_crash;
  action.sa_flags = SA_RESETHAND | SA_ONSTACK | SA_NODEFER;
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigaction(signal, &action, nullptr);
#endif
}

}  // namespace qengine
