#include "core/plugin_host/call.hpp"

#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <initializer_list>

#include "core/model/file_bytes.hpp"

namespace qengine {

constinit thread_local const Call* current_call = nullptr;

namespace {

void put(const char* text) {
  if (write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
}

// Only async-signal-safe calls from here on.
void on_crash(int signal, siginfo_t* info, void*) {
  if (const char* file = signal == SIGBUS ? mapped_file_at(info->si_addr) : nullptr) {
    put("\nE201 ");
    put(file);
    put(" became shorter while it was being read, or its disk failed\n"
        "  hint  replace a model by renaming a complete copy over it; start again when the copy or download is done\n");
    _exit(3);
  }
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

void install(std::initializer_list<int> signals) {
  struct sigaction action {};
  action.sa_sigaction = on_crash;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER | SA_RESETHAND;
  sigemptyset(&action.sa_mask);
  for (const int s : signals) sigaction(s, &action, nullptr);
}

}  // namespace

void install_crash_handler() { install({SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}); }
void install_cut_file_handler() { install({SIGBUS}); }

}  // namespace qengine
