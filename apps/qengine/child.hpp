// This program, started again as a child: a measurement that needs a process of its own, or a server beside the client.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/config/values.hpp"

namespace qengine {

// The flags that say again what somebody has set: given values of these groups, but for `without`. A profile is named too,
// for what only it can hold.
std::vector<std::string> flags_of(const Values& values, const std::vector<const SettingGroup*>& groups, const std::vector<std::string>& without = {});

// A running child. Its standard output and error come through pipes; it dies with this process. Destroyed while it runs: it gets
// SIGTERM, and SIGKILL after ten seconds.
class Child {
 public:
  // `on_error_line`: called with every line of its standard error, on a thread of the child's.
  explicit Child(std::vector<std::string> args, std::function<void(const std::string&)> on_error_line = {});
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // Waits; exit code, or 128 + signal. `stop` (may be null) passes SIGINT on once it is set.
  int wait(const std::atomic<bool>* stop = nullptr);
  bool running();
  void terminate();

  // After wait().
  const std::string& out() const;
  std::string error_tail() const;  // the last lines of standard error

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace qengine
