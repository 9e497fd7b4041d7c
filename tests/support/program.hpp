// Runs a built program as a user would: arguments, environment, standard input; both outputs back.
#pragma once

#include <csignal>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace qengine::test {

struct Outcome {
  int code = -1;  // exit status, or 128 + signal when it died of one
  std::string out, err;
  double cpu_s = 0;  // user and system time
};

struct Launch {
  std::vector<std::string> args;
  std::map<std::string, std::string> environment;  // beyond PATH, HOME and TMPDIR of this process
  std::string input;                               // standard input; empty: /dev/null
  bool close_stdout = false;                       // nobody reads standard output
  int signal_after_output = 0;                     // sent once something has come on standard output
  std::string program;                             // "": build/bin/qengine
};

Outcome run(const Launch& launch);
Outcome run(std::vector<std::string> args);

}  // namespace qengine::test
