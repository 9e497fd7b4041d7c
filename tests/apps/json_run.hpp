// A command run with --json, its document back; and a folder that goes with the test.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/program.hpp"

namespace qengine::test {

using Json = nlohmann::ordered_json;

inline Json json_of(std::vector<std::string> args, int code = 0) {
  std::string words;
  for (const auto& a : args) words += a.substr(0, 60) + " ";
  args.push_back("--json");
  const Outcome o = run(args);
  EXPECT_EQ(o.code, code) << words << "\n" << o.err;
  const Json j = Json::parse(o.out, nullptr, false);
  EXPECT_TRUE(j.is_object()) << words << "\n" << o.out.substr(0, 300) << o.err;
  return j;
}

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "qengine-test-XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("no temporary folder");
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

inline std::string ids_text(const nlohmann::json& ids, std::size_t most = 1u << 30) {
  std::string out;
  for (std::size_t i = 0; i < std::min(most, ids.size()); ++i) out += (i ? "," : "") + ids[i].dump();
  return out;
}

}  // namespace qengine::test
