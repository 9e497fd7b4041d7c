// An arm: one way to load a model, written in one word on the command line.
//
//   fp8_per_channel                      as --quantization
//   fp8_online:fp8_per_tensor            as --plugin
//   path=DIR                             another checkpoint of the same model
//   kv=fp8_e4m3  kv=kv_fp8:e4m3          as --kv-cache-dtype, --kv-plugin
//   FLAG=VALUE                           any other flag of the model, the engine or the plugins
//   name=LABEL                           what the report calls it
//
// Several are joined by commas: "path=Q4.gguf,kv=fp8,name=q4+fp8".
#pragma once

#include <string>
#include <vector>

#include "apps/qengine/command.hpp"

namespace qengine {

struct Arm {
  std::string name;
  std::vector<std::string> flags;  // "--quantization=fp8_per_channel"
  std::string flags_text() const;
};

// Throws Error E101.
Arm parse_arm(const std::string& text);

// All values of a command on whose command line the arm's flags stand behind those given. `command` is what they are read for.
Arguments with_arm(const Invocation& in, const Command& command, const Arm& arm);

}  // namespace qengine
