// Where tests find their data. tests/golden is in the project; the whole fixture set may lie beside it.
#pragma once

#include <cstdlib>
#include <filesystem>

namespace qengine::test {

inline std::filesystem::path source_dir() { return QE_SOURCE_DIR; }
inline std::filesystem::path binary_dir() { return QE_BINARY_DIR; }
inline std::filesystem::path golden() { return source_dir() / "tests/golden"; }

// A fixture by its path below the fixture folder ("tiny-qwen3", "gguf/tiny-qwen3-q8_0.gguf"): from
// QENGINE_FIXTURES or ../shared/fixtures when there, else from tests/golden. Empty when in neither.
inline std::filesystem::path fixture(const std::filesystem::path& name) {
  namespace fs = std::filesystem;
  const char* env = std::getenv("QENGINE_FIXTURES");
  for (const fs::path& root : {env ? fs::path(env) : fs::path(), source_dir().parent_path() / "shared/fixtures", golden()})
    if (!root.empty() && fs::exists(root / name)) return root / name;
  return {};
}

}  // namespace qengine::test
