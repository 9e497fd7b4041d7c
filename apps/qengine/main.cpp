// qengine: which command, with which settings; what its errors look like; its exit code.
//
// Exit codes: 0 done, 1 our own fault, 2 usage or configuration (E1xx), 3 checkpoint (E2xx),
// 4 plugin (E3xx), 5 device or memory (E4xx), 6 a gate failed, 7 network (E5xx), 130 and 143 signals.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>

#include "apps/qengine/command.hpp"
#include "core/base/log.hpp"
#include "core/base/nearest.hpp"
#include "core/plugin_host/call.hpp"

namespace qengine {

void install_stop_handlers();

namespace {

void show(const Error& e) {
  const bool c = colour(STDERR_FILENO);
  std::string out = (c ? "\033[1;31m" : "") + e.code() + (c ? "\033[0m " : " ") + e.message() + "\n";
  std::size_t width = 4;
  for (const auto& [key, text] : e.lines()) width = std::max(width, key.size());
  for (const auto& [key, text] : e.lines())
    out += std::string("  ") + (c ? "\033[2m" : "") + key + (c ? "\033[0m" : "") + std::string(width + 2 - key.size(), ' ') + text + "\n";
  std::fflush(stdout);
  std::fputs(out.c_str(), stderr);
}

std::vector<const SettingGroup*> groups_of(const Command& c) {
  std::vector<const SettingGroup*> groups = c.groups;
  const bool own_output = std::any_of(groups.begin(), groups.end(), [](const SettingGroup* g) {
    return std::any_of(g->settings.begin(), g->settings.end(), [](const Setting& s) { return std::string_view(s.name) == "output"; });
  });
  if (!own_output) groups.push_back(&result_settings());
  groups.push_back(&output_settings());
  groups.push_back(&general_settings());
  return groups;
}

const Command* find(std::string_view name) {
  if (name == "plugins") name = "plugin list";
  if (name == "eval greedy") name = "eval greedy-hash";
  for (const Command* c : all_commands())
    if (name == c->name) return c;
  return nullptr;
}

// Is `word` the first half of commands such as "eval kl"?
bool is_family(std::string_view word) {
  return std::any_of(all_commands().begin(), all_commands().end(), [&](const Command* c) {
    const std::string_view name = c->name;
    return name.size() > word.size() && name.starts_with(word) && name[word.size()] == ' ';
  });
}

std::string commands_text(std::string_view family) {
  std::string out;
  for (const Command* c : all_commands()) {
    if (!family.empty() && !std::string_view(c->name).starts_with(std::string(family) + " ")) continue;
    std::string line = "  " + std::string(c->name);
    line.resize(std::max<std::size_t>(line.size() + 2, 22), ' ');
    out += line + c->summary + "\n";
  }
  return out;
}

void print_top_help() {
  const bool c = colour(STDOUT_FILENO);
  const auto title = [&](const char* t) { return std::string(c ? "\033[1m" : "") + t + (c ? "\033[0m" : "") + "\n"; };
  print("qengine runs large language models in few bits.\n\n" + title("Usage") +
        "  qengine MODEL_FLAGS...           the same as qengine run\n"
        "  qengine COMMAND [MODEL] [--flag value]...\n\n" +
        title("Commands") + commands_text("") + "\n" + title("Start here") +
        "  qengine run MODEL --prompt \"Why is the sky blue?\" --chat\n"
        "  qengine inspect MODEL            what each layer is, and which plugin takes it\n\n"
        "MODEL is a folder with config.json and .safetensors files, or a .gguf file.\n"
        "qengine COMMAND --help lists the flags of a command, qengine help config those of a profile.\n"
        "Every flag can be set in the environment: QENGINE_MAX_TOKENS for --max-tokens.\n");
}

void print_command_help(const Command& command) {
  const bool c = colour(STDOUT_FILENO);
  std::string out = std::string("qengine ") + command.name + ": " + command.summary + "\n";
  if (!command.usage.empty()) out += std::string("\n") + (c ? "\033[1m" : "") + "Usage" + (c ? "\033[0m" : "") + "\n";
  for (const char* u : command.usage) out += std::string("  qengine ") + command.name + " " + u + "\n";
  if (*command.details) out += std::string("\n") + command.details + "\n";
  print(out + help_text(groups_of(command), command.defaults, terminal_width(STDOUT_FILENO), c) +
        "\nIn the environment QENGINE_LOG_LEVEL stands for --log-level, and so on (qengine help config).\n");
}

[[noreturn]] void unknown_command(const std::string& word) {
  std::vector<std::string> names{"help"};
  for (const Command* c : all_commands()) {
    const std::string name = c->name;
    names.push_back(name);
    names.push_back(name.substr(0, name.find(' ')));
  }
  Error error("E101", "unknown command " + word);
  if (access(word.c_str(), F_OK) == 0 && find("run")) throw error.hint("to run a model: qengine run " + word + " (or qengine --model " + word + ")");
  if (const std::string near = nearest(word, names); !near.empty()) throw error.hint("did you mean " + near + "? (qengine --help)");
  throw error.hint("qengine --help lists the commands");
}

int help(std::vector<std::string> words) {
  if (words.empty()) return print_top_help(), 0;
  if (words[0] == "config") return print(config_reference()), 0;
  const std::string name = words.size() > 1 ? words[0] + " " + words[1] : words[0];
  if (const Command* c = find(name)) return print_command_help(*c), 0;
  if (is_family(words[0])) return print("Commands\n" + commands_text(words[0])), 0;
  unknown_command(name);
}

// `environment` false: neither variables nor a profile count.
int run_command(const Command& command, std::vector<std::string> args, bool environment = true) {
  CommandLineSpec spec{command.name, groups_of(command), command.defaults, {}, command.positional, command.max_words};
  std::vector<const SettingGroup*> any;
  for (const Command* c : all_commands())
    for (const SettingGroup* g : groups_of(*c)) {
      any.push_back(g);
      for (const Setting& s : g->settings)
        if (!s.hidden) spec.elsewhere.emplace_back(s.name, c->name);
    }
  any.insert(any.end(), profile_groups().begin(), profile_groups().end());
  // Asked for help, nothing else matters: not a broken profile, not a missing value.
  for (const std::string& a : args) {
    if (a == "--") break;
    if (a == "--help" || a == "-h") return print_command_help(command), 0;
  }
  const auto variables = environment ? qengine_environment() : std::map<std::string, std::string>();
  const auto again = [&] { return resolve(spec, args, variables, any); };
  const Arguments arguments = again();
  const Values& values = arguments.values;
  set_log_level(values.flag("quiet") && !values.given("log-level") ? "error" : values.text("log-level"));
  set_log_json(values.text("log-format") == "json");
  for (const std::string& notice : arguments.notices) log("config").warn("{}", notice);
  if (values.flag("print-config")) return print(print_config(spec, arguments)), 0;
  if (values.has("output") && values.at("output").setting == &result_settings().settings[0])
    if (const std::string file = values.text("output"); !std::freopen(file.c_str(), "w", stdout))
      throw Error("E108", "cannot write " + file + ": " + std::strerror(errno));
  return command.run({command, values, arguments.profile, arguments.words, again});
}

int dispatch(std::vector<std::string> args) {
  if (args.empty() && isatty(STDIN_FILENO)) return print_top_help(), 0;
  const std::string first = args.empty() ? "-" : args[0];
  const auto rest = [&](std::size_t n) { return std::vector<std::string>(args.begin() + std::min(n, args.size()), args.end()); };
  if (first == "--version" || first == "-V") return run_command(*find("version"), rest(1), false);
  if (first == "--help" || first == "-h") return print_top_help(), 0;
  if (first == "help") return help(rest(1));
  if (first.starts_with('-')) {
    if (std::find(args.begin(), args.end(), "--version") != args.end()) return run_command(*find("version"), std::find(args.begin(), args.end(), "--json") == args.end() ? std::vector<std::string>() : std::vector<std::string>{"--json"}, false);
    const Command* run = find("run");
    return run_command(run ? *run : *find("version"), args);
  }
  if (args.size() > 1)
    if (const Command* two = find(first + " " + args[1])) return run_command(*two, rest(2));
  if (const Command* one = find(first)) return run_command(*one, rest(1));
  if (is_family(first)) {
    if (args.size() > 1 && !args[1].starts_with('-')) unknown_command(first + " " + args[1]);
    print("Commands\n" + commands_text(first));
    return args.size() > 1 ? 0 : 2;
  }
  unknown_command(first);
}

}  // namespace
}  // namespace qengine

int main(int argc, char** argv) {
  using namespace qengine;
  install_stop_handlers();
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  alignas(16) static char stack[64 * 1024];  // the ordinary one may be what ran out
  const stack_t alternate{.ss_sp = stack, .ss_flags = 0, .ss_size = sizeof stack};
  sigaltstack(&alternate, nullptr);
  install_crash_handler();
#else
  install_cut_file_handler();  // of the others the sanitizers say more
#endif
  try {
    return dispatch({argv + 1, argv + argc});
  } catch (const Error& e) {
    show(e);
    return e.exit_code();
  } catch (const std::bad_alloc&) {
    show(Error("E403", "out of memory").hint("a smaller --max-model-len or --kv-cache-memory-bytes needs less"));
    return 5;
  } catch (const std::exception& e) {
    show(Error("E000", std::string("internal error: ") + e.what()).hint("please report it with the command line and the output of qengine --version"));
    return 1;
  } catch (...) {
    show(Error("E000", "internal error of unknown kind").hint("please report it with the command line and the output of qengine --version"));
    return 1;
  }
}
