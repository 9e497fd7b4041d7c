// Error: what a user reads when something they asked for will not happen.
//
//   E202 missing tensor model.layers.3.mlp.up_proj.scales
//     from  awq_marlin needs qweight, qzeros, scales; present: qweight, qzeros
//     hint  the download may be incomplete
//
// Thrown while loading and configuring, caught once in apps and at the engine's edge. In the step
// loop an ordinary "no" is a value, never an exception. Codes are listed in docs/errors.md.
#pragma once

#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace qengine {

class Error : public std::exception {
 public:
  // `code` is "E101".."E599" (or "E000" for our own faults); `message` is one line, no full stop.
  Error(std::string code, std::string message);

  // Add one explaining line; keys are "in" (file, place), "from" (why that was expected), "hint"
  // (what to do) or a plugin's name.
  Error& line(std::string key, std::string text);
  Error& in(std::string text) { return line("in", std::move(text)); }
  Error& from(std::string text) { return line("from", std::move(text)); }
  Error& hint(std::string text) { return line("hint", std::move(text)); }

  const std::string& code() const { return code_; }
  const std::string& message() const { return message_; }
  const std::vector<std::pair<std::string, std::string>>& lines() const { return lines_; }
  std::string_view find(std::string_view key) const;  // first line with that key, else ""

  // 2 usage and config, 3 checkpoint, 4 plugin, 5 device and memory, 7 network, 1 our own fault.
  int exit_code() const;

  const char* what() const noexcept override { return text_.c_str(); }  // the whole text

 private:
  std::string code_, message_, text_;
  std::vector<std::pair<std::string, std::string>> lines_;
};

}  // namespace qengine
