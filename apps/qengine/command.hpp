// A command of qengine: one file cmd_NAME.cpp each, which defines one `const Command`, named in
// commands.cpp. Everything else (help, flags, environment, profile, errors, exit codes) follows from it.
//
//   extern const Command tokenize_command = {
//       .name = "tokenize", .summary = "text to token ids and back", .usage = {"--tokenizer DIR --text TEXT"},
//       .groups = {&tokenize_settings()}, .run = run_tokenize};
//
// run() writes its result to stdout with print(), returns the exit code, and throws Error for anything
// that the user should read; main() shows it and turns it into the exit code of its family.
#pragma once

#include <atomic>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.hpp"
#include "core/config/command_line.hpp"
#include "core/config/setting.hpp"

namespace qengine {

struct Command;

struct Invocation {
  const Command& command;
  const Values& values;
  const Profile& profile;
  const std::vector<std::string>& words;  // arguments that are no flags, MODEL taken out
  // The same command line and environment with the profile as it is by now. Throws what reading them threw. Empty in tests and
  // in commands that are made of another.
  std::function<Arguments()> again = {};

  bool json() const { return values.flag("json"); }
  bool quiet() const { return values.flag("quiet"); }
};

struct Command {
  const char* name = "";     // "run", "eval kl"
  const char* summary = "";  // one line for the list of commands
  std::vector<const char*> usage;     // examples of arguments, without "qengine NAME"
  const char* details = "";           // a few lines under the usage; "" for none
  std::vector<const SettingGroup*> groups;  // output and general settings are added to every command
  std::vector<std::pair<std::string, std::string>> defaults;  // built-in defaults that differ here
  const char* positional = "";  // setting that the first word stands for: "model"
  int max_words = 0;            // further words
  int (*run)(const Invocation&) = nullptr;
};

// All commands, in the order in which --help lists them. commands.cpp.
const std::vector<const Command*>& all_commands();

// ---- stdout ----------------------------------------------------------------------------------------

// Writes to stdout at once: whoever reads may be waiting for the next word. When the reader has gone, ends the program
// quietly with exit code 0; any other failure throws.
void print(std::string_view text);
// {"schema":"qengine.COMMAND/1","version":...,"build":{...}}, to be filled and given to print_json.
nlohmann::ordered_json json_document(const Command& command);
void print_json(const nlohmann::ordered_json& document);

// ---- stderr ----------------------------------------------------------------------------------------

bool stderr_is_terminal();
bool colour(int fd);  // a terminal, and NO_COLOR unset or empty
int terminal_width(int fd);
// One line to stderr, for progress and timings; nothing under --quiet.
void note(const Invocation& in, std::string_view line);

// Progress of a long step: a bar on a terminal once it has taken a second, else a line every 10 %
// (unless `lines` is false), nothing under --quiet, --json or --no-progress.
class Progress {
 public:
  Progress(const Invocation& in, std::string what, bool lines = true);
  ~Progress();
  void at(double fraction, std::string_view detail = {});  // 0..1, from any one thread at a time
  void done();

 private:
  struct State;
  State* state_;
};

// ---- signals ---------------------------------------------------------------------------------------

// While one lives, the first SIGINT or SIGTERM only sets a flag, so that the command can finish what
// it has; without one, and for a second signal (0.3 s later or more: wrappers deliver one twice), the
// program ends at once with 128 + the signal.
class GracefulStop {
 public:
  GracefulStop();
  ~GracefulStop();
  GracefulStop(const GracefulStop&) = delete;
  GracefulStop& operator=(const GracefulStop&) = delete;
  static const std::atomic<bool>& requested();
  static void forget();    // the interrupt was dealt with; the next one is a first one again
  static int exit_code();  // 130 or 143 once requested
};

}  // namespace qengine
