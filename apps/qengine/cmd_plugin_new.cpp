// plugin new: a complete plugin project, outside of any tree, that builds, passes its tests and wants to be changed.
#include <filesystem>
#include <fstream>

#include "apps/qengine/command.hpp"
#include "apps/qengine/template_files.hpp"
#include "core/plugin_host/manifest.hpp"

namespace qengine {
namespace {

namespace fs = std::filesystem;

const SettingGroup& new_settings() {
  static const SettingGroup group{"Project", {
      {.name = "id", .value = "ID", .shown = "com.example.NAME", .help = "the plugin's id: reverse DNS, yours for good"},
      {.name = "vendor", .value = "NAME", .fallback = "me", .help = "who makes it"},
      {.name = "folder", .kind = Kind::kPath, .value = "DIR", .shown = "./NAME", .help = "where to write it; must not exist"},
  }};
  return group;
}

std::string filled(std::string_view text, const std::vector<std::pair<std::string, std::string>>& words) {
  std::string out(text);
  for (const auto& [word, value] : words)
    for (auto at = out.find(word); at != out.npos; at = out.find(word, at + value.size())) out.replace(at, word.size(), value);
  return out;
}

int run(const Invocation& in) {
  if (in.words.empty()) throw Error("E101", "no name").hint("qengine plugin new my_format");
  const std::string& name = in.words[0];
  if (!valid_plugin_name(name) || (name[0] >= '0' && name[0] <= '9')) throw Error("E101", "\"" + name + "\" is no name for a plugin").hint("a-z, 0-9 and _, a letter first: my_format");
  const std::string id = in.values.has("id") ? in.values.text("id") : "com.example." + name;
  if (!valid_plugin_id(id)) throw Error("E101", "--id " + id + " is not reverse DNS in lower case").hint("such as com.acme." + name);
  const std::string vendor = in.values.text("vendor");
  if (vendor.find_first_of("\"\\\n") != vendor.npos) throw Error("E101", "--vendor holds a quote, a backslash or a line break");
  const fs::path folder = in.values.has("folder") ? fs::path(in.values.text("folder")) : fs::path(name);
  std::error_code ec;
  if (fs::exists(folder, ec)) throw Error("E108", folder.string() + " exists already").hint("--folder DIR names another place");

  Json files = Json::array();
  for (const auto& [path, text] : template_files()) {
    const fs::path file = folder / fs::path(path);
    fs::create_directories(file.parent_path(), ec);
    std::ofstream out(file, std::ios::binary);
    out << filled(text, {{"@NAME@", name}, {"@ID@", id}, {"@VENDOR@", vendor}});
    if (!out.flush()) throw Error("E108", "cannot write " + file.string());
    out.close();
    if (text.starts_with("#!")) fs::permissions(file, fs::perms::owner_exec | fs::perms::group_exec | fs::perms::others_exec, fs::perm_options::add, ec);
    files.push_back(file.string());
  }
  if (in.json()) {
    Json doc = json_document(in.command);
    doc["folder"] = folder.string();
    doc["id"] = id;
    doc["files"] = files;
    print_json(doc);
    return 0;
  }
  print("wrote " + folder.string() + ": a 4-bit format that works; change format.hpp to yours\n\n  cd " + folder.string() +
        "\n  cmake -S . -B build -D CMAKE_PREFIX_PATH=PREFIX    # where qengine is installed\n  cmake --build build && ctest --test-dir build --output-on-failure\n");
  return 0;
}

}  // namespace

extern const Command plugin_new_command;
const Command plugin_new_command = {
    .name = "plugin new",
    .summary = "write a complete plugin project to start from",
    .usage = {"NAME", "NAME --id com.acme.NAME --vendor Acme"},
    .groups = {&new_settings()},
    .max_words = 1,
    .run = run,
};

}  // namespace qengine
