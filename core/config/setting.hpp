// The settings of qengine: one record each, from which everything that speaks of it is made: the
// Boost.Program_options descriptions, the keys of the TOML profile, the environment names, --help,
// `help config` and --print-config.
//
// Settings come in groups. A command lists the groups it understands. Groups with TOML keys live in
// this room, so that any command can read any profile; flags of one command alone (bench's
// --input-len) are a group beside that command.
#pragma once

#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace qengine {

enum class Kind {
  kBool,    // --x, --no-x, --x=false
  kInt,     // 8192, 8k, 8K, 1M; words beside the number are named in `value`: "N|auto"
  kBytes,   // as kInt, and 4GiB
  kNumber,  // 0.92
  kText,
  kChoice,  // one of the words of `value`: "text|json"
  kPath,    // in a profile relative to its file
  kList,    // repeated or separated by commas
  kTexts,   // repeated; a comma is part of the text
  kPaths,   // repeated or separated by commas
};

// What it takes to change a setting of a running server.
enum class Reload { kLive, kSwap, kRestart };

struct Setting {
  const char* name = "";   // the flag, without "--"
  char letter = 0;         // -q
  Kind kind = Kind::kText;
  const char* value = "";  // shown after the flag: "N", "DIR", "auto|cpu"; the words of a kChoice
  const char* fallback = "";  // default, as it would be typed; "" = unset
  const char* shown = "";     // default as --help says it, where `fallback` cannot ("from config.json")
  const char* key = "";       // "engine.block_size"; "" = not in a profile
  Reload reload = Reload::kRestart;
  const char* help = "";
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool secret = false;  // never printed
  bool hidden = false;  // works, but --help does not show it
  int wave = 1;
};

struct SettingGroup {
  const char* title;
  std::vector<Setting> settings;
};

bool is_list(Kind);
bool is_path(Kind);
std::string env_name(const Setting&);  // QENGINE_MAX_MODEL_LEN

// Words of "N|auto" or "text|json"; what stands for a number (N, BYTES, F) is left out.
std::vector<std::string> words(const Setting&);

// The groups with TOML keys, in the order of `help config`.
std::span<const SettingGroup* const> profile_groups();
const Setting* setting_of_key(std::string_view key);  // "engine.block_size"

// settings_*.cpp
const SettingGroup& general_settings();   // help, version, config, print-config
const SettingGroup& output_settings();    // json, quiet, log-level ...
const SettingGroup& result_settings();    // output: of commands that have no --output of their own
const SettingGroup& model_settings();     // which model, in which format
const SettingGroup& plugin_settings();    // where plugins come from
const SettingGroup& engine_settings();    // device, memory, batching
const SettingGroup& sampling_settings();  // temperature ...
const SettingGroup& chat_settings();      // the template, of run and serve
const SettingGroup& server_settings();    // the HTTP side
const SettingGroup& canary_settings();    // a second backend for a share of the traffic
const SettingGroup& gate_settings();      // thresholds of eval and report

// ---- values --------------------------------------------------------------------------------------

// `text` checked against `s` and rewritten in its plainest form ("8K" -> "8192", "yes" -> "true").
// nullopt and *expected ("an integer such as 4096, 4k or 4K, or auto") when it does not fit.
std::optional<std::string> normalize(const Setting& s, std::string_view text, std::string* expected);

// "8K" -> 8192. `bytes` also allows KiB, MiB, GiB. nullopt when malformed or beyond 63 bits.
std::optional<long long> parse_integer(std::string_view text, bool bytes);
std::optional<double> parse_number(std::string_view text);
std::optional<bool> parse_bool(std::string_view text);

}  // namespace qengine
