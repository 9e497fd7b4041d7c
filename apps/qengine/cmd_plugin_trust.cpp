// plugin trust: the entry that lets a plugin be loaded; --yes writes it into the profile.
#include "apps/qengine/command.hpp"
#include "apps/qengine/model_setup.hpp"
#include "apps/qengine/plugin_text.hpp"
#include "core/model/safetensors_writer.hpp"

namespace qengine {
namespace {

const SettingGroup& trust_settings() {
  static const SettingGroup group{"Trust", {{.name = "yes", .kind = Kind::kBool, .fallback = "false", .help = "add the entry to the file that --config names"}}};
  return group;
}

int run(const Invocation& in) {
  if (in.words.empty()) throw Error("E101", "no plugin named").hint("qengine plugin trust FILE");
  const Plugin p = PluginHost::read_manifest(in.words[0]);
  const std::string entry = "[[plugins.allow]]\nid = \"" + p.id + "\"\nsha256 = \"" + p.sha256 + "\"\n";
  const bool yes = in.values.flag("yes");
  if (yes) {
    const std::string file = in.values.text("config");
    if (file.empty()) throw Error("E101", "--yes needs a profile to write to").hint("--config FILE.toml names it");
    bool there = false;
    for (const ProfilePlugin& a : in.profile.allow) there |= a.id == p.id && a.sha256 == p.sha256;
    if (!there) {
      std::string text = read_text(file, 1 << 20);
      if (!text.empty() && !text.ends_with('\n')) text += '\n';
      write_file_safely(file, text + "\n" + entry);
    }
    note(in, (there ? "already in " : "added to ") + file);
  }
  if (in.json()) {
    Json doc = json_document(in.command);
    doc["id"] = p.id;
    doc["sha256"] = p.sha256;
    doc["added"] = yes;
    print_json(doc);
  } else {
    print(entry);
    if (!yes) note(in, "a plugin runs with your rights: look at its source first. Add these lines to the profile, or use --yes --config FILE.toml");
  }
  return 0;
}

}  // namespace

extern const Command plugin_trust_command;
const Command plugin_trust_command = {
    .name = "plugin trust",
    .summary = "the allow-list entry of a plugin file",
    .usage = {"FILE", "FILE --yes --config qengine.toml"},
    .groups = {&trust_settings()},
    .max_words = 1,
    .run = run,
};

}  // namespace qengine
