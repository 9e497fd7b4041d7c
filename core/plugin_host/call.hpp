// CallScope: stands around every call into a plugin. It tells the crash handler whom to name, and the
// host table whose threads, cancel flag and patterns the call uses.
//
// A plugin is code inside our process: it can corrupt anything. This does not prevent that, it names
// the suspect.
#pragma once

#include <atomic>
#include <map>
#include <string>

namespace qengine {

class ThreadPool;

// What a plugin asked of the host during a series of calls, kept for the error and for the ledger.
struct CallFindings {
  std::map<std::string, bool, std::less<>> patterns;  // pattern -> ever matched
  std::string bad_pattern, bad_pattern_why;           // the first one that is no valid pattern
};

struct Call {
  const char* plugin = "";
  const char* call = "";   // "plan", "load", "run", ...
  const char* layer = "";  // module name, "" when there is none
  ThreadPool* pool = nullptr;               // null: parallel_for runs on the calling thread
  const std::atomic<bool>* cancel = nullptr;
  CallFindings* findings = nullptr;
  const Call* outer = nullptr;
};

// The call that this thread is in, null outside of plugins.
extern constinit thread_local const Call* current_call;

class CallScope {
 public:
  explicit CallScope(Call& call) : call_(call) {
    call_.outer = current_call;
    current_call = &call_;
  }
  ~CallScope() { current_call = call_.outer; }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

 private:
  Call& call_;
};

// On SIGSEGV, SIGFPE, SIGILL and SIGABRT: writes one line to stderr, naming the plugin, layer and call if a
// plugin was running, then dies of the signal as before. So on SIGBUS too, unless it came from reading a
// file that was cut while it was mapped: that ends the program with its name (E201) and exit code 3.
void install_crash_handler();
void install_cut_file_handler();  // the part about SIGBUS alone, where a sanitizer says more about the others

}  // namespace qengine
