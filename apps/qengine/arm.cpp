#include "apps/qengine/arm.hpp"

#include <algorithm>

#include "apps/qengine/child.hpp"
#include "apps/qengine/dummy_setup.hpp"
#include "apps/qengine/model_setup.hpp"
#include "core/base/nearest.hpp"

namespace qengine {

std::string Arm::flags_text() const {
  std::string out;
  for (const std::string& f : flags) out += (out.empty() ? "" : " ") + f;
  return out;
}

Arm parse_arm(const std::string& text) {
  Arm arm;
  std::vector<std::string> known;
  for (const SettingGroup* g : with_model_groups({&dummy_settings()}))
    for (const Setting& s : g->settings) known.push_back(s.name);
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    begin = end + 1;
    const auto equals = item.find('=');
    if (item.empty() || equals == 0 || equals + 1 == item.size())
      throw Error("E101", "--arm " + text + ": \"" + item + "\" is neither a format nor KEY=VALUE").hint("for example --arm fp8_per_channel,kv=fp8 or --arm path=MODEL,name=LABEL");
    if (equals == item.npos) {
      arm.flags.push_back((item.find(':') == item.npos ? "--quantization=" : "--plugin=") + item);
      continue;
    }
    const std::string key = item.substr(0, equals), value = item.substr(equals + 1);
    if (key == "name") arm.name = value;
    else if (key == "path") arm.flags.push_back("--model=" + value);
    else if (key == "kv") arm.flags.push_back((value.find(':') == value.npos ? "--kv-cache-dtype=" : "--kv-plugin=") + value);
    else if (std::find(known.begin(), known.end(), key) != known.end()) arm.flags.push_back("--" + key + "=" + value);
    else {
      Error e("E101", "--arm " + text + ": no flag of a model is called " + key);
      const std::string near = nearest(key, known);
      throw near.empty() ? e.hint("name=, path=, kv=, or a flag of qengine run without its dashes") : e.hint("did you mean " + near + "?");
    }
  }
  if (arm.name.empty()) arm.name = text;
  return arm;
}

Arguments with_arm(const Invocation& in, const Command& command, const Arm& arm) {
  std::vector<std::string> without;  // what the arm says itself
  for (const std::string& f : arm.flags) {
    without.push_back(f.substr(2, f.find('=') - 2));
    if (without.back() == "quantization") without.push_back("plugin");
    if (without.back() == "plugin") without.push_back("quantization");
    if (without.back() == "kv-plugin") without.push_back("kv-cache-dtype");
    if (without.back() == "kv-cache-dtype") without.push_back("kv-plugin");
  }
  std::vector<std::string> args = flags_of(in.values, with_model_groups({}), without);
  args.insert(args.end(), arm.flags.begin(), arm.flags.end());
  std::vector<const SettingGroup*> groups = command.groups;
  groups.insert(groups.end(), {&output_settings(), &general_settings()});
  return resolve({command.name, groups, command.defaults, {}, "", 0}, args, {}, groups);
}

}  // namespace qengine
