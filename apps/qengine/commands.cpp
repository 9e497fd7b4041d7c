// The list of commands. To add one: write cmd_NAME.cpp, name its Command here.
#include "apps/qengine/command.hpp"

namespace qengine {

extern const Command tokenize_command;
extern const Command version_command;

const std::vector<const Command*>& all_commands() {
  static const std::vector<const Command*> commands{
      &tokenize_command,
      &version_command,
  };
  return commands;
}

}  // namespace qengine
