// version: one line; with --json the record of the build. Touches no plugin, no device, no profile.
#include "apps/qengine/command.hpp"
#include "core/base/build_info.hpp"

namespace qengine {
namespace {

int run_version(const Invocation& in) {
  if (in.json()) {
    print_json(json_document(in.command));
    return 0;
  }
  const BuildInfo& b = build_info();
  print("qengine " + b.version + " (" + b.commit + ", " + b.compiler + (b.cuda.empty() ? "" : ", CUDA " + b.cuda) + ")\n");
  return 0;
}

}  // namespace

extern const Command version_command;
const Command version_command = {.name = "version", .summary = "version, commit and compiler; --json: the whole record", .run = run_version};

}  // namespace qengine
