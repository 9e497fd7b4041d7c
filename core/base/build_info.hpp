// What this program was built from: for --version, --json documents and /version.
#pragma once

#include <string>

namespace qengine {

struct BuildInfo {
  std::string version;   // "0.1.0"
  std::string commit;    // "1ab7e2834c55", with "-dirty" for changed files; "unknown" outside a repository
  std::string compiler;  // "GNU 12.2.0"
  std::string flags;     // "-O2 -DNDEBUG -ffp-contract=off"
  std::string cuda;      // "13.0"; "" when built without
  int abi_major, abi_minor;  // newest plugin ABI served
};

const BuildInfo& build_info();

}  // namespace qengine
