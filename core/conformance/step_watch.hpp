// StepWatch: what a plugin's code asks of the system while it runs a step: memory, locks, files, threads.
//
// The calls that a loaded library makes into libc and libstdc++ go through its relocation table; `watch` puts
// counting functions there, in every library but the program itself and libc. Nothing is counted outside of a StepScope, nor
// in code of the host that a plugin called back (HostScope).
//
// For a process that runs one check: there is no way back.
#pragma once

#include <string>
#include <vector>

namespace qengine::conformance {

// From now on the libraries that are loaded are watched. REQUIRES: called after the plugin was loaded.
void watch_steps();

class StepScope {
 public:
  StepScope();
  ~StepScope();
  StepScope(const StepScope&) = delete;

 private:
  bool before_;
};

class HostScope {
 public:
  HostScope();
  ~HostScope();
  HostScope(const HostScope&) = delete;

 private:
  bool before_;
};

bool in_step();

// "malloc 3 times", ... since the last call.
std::vector<std::string> take_step_calls();

}  // namespace qengine::conformance
