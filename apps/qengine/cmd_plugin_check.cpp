// plugin check: the conformance kit on one plugin file.
#include <filesystem>

#include "apps/qengine/command.hpp"
#include "core/conformance/kit.hpp"
#include "core/model/safetensors_writer.hpp"

namespace qengine {
namespace {

namespace fs = std::filesystem;
using namespace conformance;

const SettingGroup& check_settings() {
  static const SettingGroup group{"Conformance", {
      {.name = "cases", .kind = Kind::kPath, .value = "FILE", .help = "check.json: which checkpoints and configurations to try (default: FILE.check.json beside the library, else one made-up case a scheme)"},
      {.name = "only", .kind = Kind::kList, .value = "ID|GROUP", .help = "these checks or groups only: QEP-401, loading"},
      {.name = "junit", .kind = Kind::kPath, .value = "FILE", .help = "also write the result as JUnit XML"},
      {.name = "notes", .kind = Kind::kBool, .fallback = "false", .help = "what was measured on the way, and why a check does not apply"},
      {.name = "list", .kind = Kind::kBool, .fallback = "false", .help = "list the checks and run none"},
  }};
  return group;
}

fs::path own_plugins() {
  std::error_code ec;
  const fs::path exe = fs::read_symlink("/proc/self/exe", ec).parent_path();
  return fs::is_directory(exe / "plugins", ec) ? exe / "plugins" : (exe / "../lib/qengine/plugins").lexically_normal();
}

int run(const Invocation& in) {
  const Values& v = in.values;
  if (v.flag("list")) {
    std::string out;
    for (const Check& c : all_checks()) out += std::string(c.id) + "  " + c.group + ": " + c.sentence + "\n";
    print(out);
    return 0;
  }
  if (in.words.empty()) throw Error("E101", "no plugin named").hint("qengine plugin check FILE.so");
  Subject subject;
  subject.library = fs::absolute(in.words[0]);
  std::error_code ec;
  if (!fs::is_regular_file(subject.library, ec)) throw Error("E307", in.words[0] + " cannot be opened: no such file").hint("qengine plugin check FILE.so");
  subject.builtin_plugins = own_plugins();
  const fs::path beside = subject.library.parent_path() / (subject.library.stem().string() + ".check.json");
  if (v.has("cases")) subject.cases = Subject::read_cases(v.text("cases"));
  else if (fs::exists(beside, ec)) subject.cases = Subject::read_cases(beside);
  for (const std::string& o : v.list("only")) {
    bool known = false;
    for (const Check& c : all_checks()) known |= o == c.id || o == c.group;
    if (!known) throw Error("E101", "--only " + o + " is neither a check nor a group").hint("qengine plugin check --list shows them");
  }
  const Report report = run_kit(subject, v.list("only"));
  if (v.has("junit")) write_file_safely(v.text("junit"), to_junit(report));
  if (in.json()) {
    Json doc = json_document(in.command);
    doc.update(to_json(report));
    print_json(doc);
  } else {
    print(to_text(report, v.flag("notes")));
  }
  return report.passed() ? 0 : 6;
}

}  // namespace

extern const Command plugin_check_command;
const Command plugin_check_command = {
    .name = "plugin check",
    .summary = "the conformance kit: does a plugin keep the contract?",
    .usage = {"FILE.so", "FILE.so --cases check.json --junit result.xml", "--list"},
    .details = "Every check runs in a process of its own: a crash is a failed check. Runs the plugin's code\nwith your rights, whatever [plugins] trust says. Exit code 6 when a check failed.",
    .groups = {&check_settings()},
    .max_words = 1,
    .run = run,
};

}  // namespace qengine
