// A program with raised rights takes no settings from the environment of whoever started it.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "tests/support/files.hpp"
#include "tests/support/paths.hpp"

namespace qengine::test {
namespace {

std::string shell(const std::string& command) {
  std::string out;
  FILE* p = popen(command.c_str(), "r");
  char buffer[4096];
  while (p && fgets(buffer, sizeof buffer, p)) out += buffer;
  if (p) pclose(p);
  return out;
}

TEST(Privileged, SettingsOfTheEnvironmentAreIgnored) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can install a program with raised rights";
  const TempDir root;
  chmod(root.path().c_str(), 0755);
  struct statvfs mount {};
  if (statvfs(root.path().c_str(), &mount) != 0 || (mount.f_flag & ST_NOSUID)) GTEST_SKIP() << root.path() << " is mounted nosuid";
  const auto program = root.path() / "qengine";
  std::filesystem::copy_file(binary_dir() / "bin/qengine", program);
  const std::string ask = "QENGINE_TRUST=any setpriv --reuid 65534 --regid 65534 --clear-groups " + program.string() + " plugin list --print-config 2>&1 | grep trust";
  chmod(program.c_str(), 0755);
  EXPECT_NE(shell(ask).find("any"), std::string::npos) << shell(ask);
  chmod(program.c_str(), 04755);
  EXPECT_EQ(shell(ask).find("any"), std::string::npos) << shell(ask);
}

}  // namespace
}  // namespace qengine::test
