#include "core/plugin_host/call.hpp"

#include <signal.h>
#include <unistd.h>

#include <cstring>

namespace qengine {

constinit thread_local const Call* current_call = nullptr;

namespace {

void put(const char* text) {
  if (write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
}

// Only async-signal-safe calls from here on.
void on_crash(int signal) {
  put("\nE000 qengine was killed by ");
  put(signal == SIGSEGV ? "SIGSEGV" : signal == SIGBUS ? "SIGBUS" : signal == SIGFPE ? "SIGFPE" : signal == SIGILL ? "SIGILL" : "SIGABRT");
  if (const Call* c = current_call) {
    put(" inside plugin ");
    put(c->plugin);
    put(", call ");
    put(c->call);
    if (*c->layer) {
      put(", layer ");
      put(c->layer);
    }
    put("\n  hint  report it to the author of the plugin; --plugin chooses another");
  }
  put("\n");
  ::signal(signal, SIG_DFL);
  raise(signal);
}

}  // namespace

void install_crash_handler() {
  struct sigaction action {};
  action.sa_handler = on_crash;
  action.sa_flags = SA_ONSTACK | SA_NODEFER | SA_RESETHAND;
  sigemptyset(&action.sa_mask);
  for (const int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigaction(s, &action, nullptr);
}

}  // namespace qengine
