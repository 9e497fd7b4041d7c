// From the words of a command line, the environment and a profile to Values.
#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/config/profile.hpp"
#include "core/config/values.hpp"

namespace qengine {

// What a command can be told.
struct CommandLineSpec {
  std::string command;  // "run", "eval kl": named in hints
  std::vector<const SettingGroup*> groups;
  // Built-in defaults that this command wants otherwise: {"log-level", "warn"}.
  std::vector<std::pair<std::string, std::string>> defaults;
  // Flags that other commands have, for "belongs to": {"port", "serve"}.
  std::vector<std::pair<std::string, std::string>> elsewhere;
  // The first word without a dash is this setting ("model"); "" = all such words stay in `words`.
  std::string positional;
  int max_words = 0;  // words without a dash beyond that
};

struct Arguments {
  Values values;
  Profile profile;
  std::vector<std::string> words;
  std::vector<std::string> notices;  // to be logged: unknown QENGINE_ names, flags without effect
};

// Throws Error E101 (usage), E102 (profile), E106 (a vLLM flag without counterpart).
// `environment`: names and values that begin with QENGINE_. `any` lists every setting of every command.
Arguments resolve(const CommandLineSpec& spec, std::span<const std::string> args,
                  const std::map<std::string, std::string>& environment, std::span<const SettingGroup* const> any);

// The same settings with a [[backend]]'s own in their place: they are the more specific ones, and win over flags too. What
// excludes one of them (plugin and quantization, kv_plugin and kv_cache_dtype) is unset.
Arguments with_backend(const Arguments& arguments, const ProfileBackend& backend);

// The variables of this process that begin with QENGINE_.
// Empty when the program runs with raised rights (AT_SECURE).
std::map<std::string, std::string> qengine_environment();

// ---- the same settings as text -------------------------------------------------------------------

// Flags by group, two columns, at most `width` wide. `colour`: bold titles.
std::string help_text(std::span<const SettingGroup* const> groups,
                      const std::vector<std::pair<std::string, std::string>>& defaults, int width, bool colour);

// Every value as TOML with its source in a comment; secrets as "***".
std::string print_config(const CommandLineSpec& spec, const Arguments& arguments);

// Key, flag, environment name, type, default and reload class of everything a profile may hold.
std::string config_reference();

// ---- flags of vLLM ---------------------------------------------------------------------------------

// A flag that vLLM has and this program does not. replacement "" = accepted without effect.
struct VllmFlag {
  const char* name;
  bool takes_value;
  const char* replacement;
};
const VllmFlag* vllm_flag(std::string_view name);

}  // namespace qengine
