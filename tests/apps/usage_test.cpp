// Help, usage errors, suggestions, precedence: what a user meets before any model is opened.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <sstream>

#include "core/config/setting.hpp"
#include "tests/support/paths.hpp"
#include "tests/support/program.hpp"

namespace qengine {
namespace {

namespace fs = std::filesystem;
using test::run;

// Names of commands, from the top help.
std::vector<std::string> commands() {
  std::istringstream lines(run({"--help"}).out);
  std::vector<std::string> out;
  bool inside = false;
  for (std::string line; std::getline(lines, line);) {
    if (line == "Commands") inside = true;
    else if (line.empty()) inside = false;
    else if (inside) out.push_back(line.substr(2, line.find("  ", 2) - 2));
  }
  return out;
}

std::vector<std::string> split(const std::string& text) {
  std::istringstream words(text);
  return {std::istream_iterator<std::string>(words), {}};
}

TEST(Version, IsOneLineAndTouchesNothing) {
  const auto o = run({.args = {"--version"}, .environment = {{"QENGINE_CONFIG", "/nonexistent.toml"}, {"QENGINE_PLUGIN_PATH", "/nonexistent"}}});
  EXPECT_EQ(o.out.substr(0, 8), "qengine ");
  EXPECT_EQ(std::count(o.out.begin(), o.out.end(), '\n'), 1);
  double least = 1;
  for (int i = 0; i < 5; ++i) least = std::min(least, run({"--version"}).cpu_s);
  EXPECT_LT(least, 0.05);
  EXPECT_EQ(run({"-V"}).out, o.out);
  EXPECT_NE(run({"--version", "--json"}).out.find("{\"schema\":\"qengine.version/1\",\"version\":"), std::string::npos);
}

TEST(Help, IsThereForEveryCommandAndFitsAPage) {
  ASSERT_GT(commands().size(), 5u);
  for (const std::string& c : commands()) {
    std::vector<std::string> args = split(c);
    args.push_back("--help");
    const auto o = run(args);
    EXPECT_EQ(o.code, 0) << c << o.err;
    EXPECT_EQ(o.out.rfind("qengine " + c + ": ", 0), 0u) << o.out.substr(0, 80);
    EXPECT_EQ(run(split("help " + c)).out, o.out);
    std::istringstream lines(o.out);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 110u) << c << ": " << line;
  }
  EXPECT_EQ(run({"help"}).out, run({"--help"}).out);
  EXPECT_EQ(run({"-h"}).out, run({"--help"}).out);
  EXPECT_NE(run({"help", "config"}).out.find("--gpu-memory-utilization"), std::string::npos);
}

TEST(Help, IsAnsweredWhateverElseIsWrong) {
  EXPECT_EQ(run({.args = {"run", "--no-such-flag", "--help"}, .environment = {{"QENGINE_CONFIG", "/nonexistent.toml"}}}).code, 0);
}

struct UsageCase {
  std::vector<std::string> args;
  int code;
  std::string text;
};

TEST(Usage, EveryMistakeHasACodeAndAWayOut) {
  const UsageCase cases[] = {
      {{"rnu"}, 2, "E101 unknown command rnu\n  hint  did you mean run? (qengine --help)\n"},
      {{"frobnicate"}, 2, "E101 unknown command frobnicate\n  hint  qengine --help lists the commands\n"},
      {{"plugin", "lst"}, 2, "E101 unknown command plugin lst\n  hint  did you mean plugin list? (qengine --help)\n"},
      {{"run", "--max-model-length", "9"}, 2, "E101 unknown option --max-model-length\n  hint  did you mean --max-model-len? (qengine run --help)\n"},
      {{"--max-model-length", "9"}, 2, "E101 unknown option --max-model-length\n  hint  did you mean --max-model-len? (qengine run --help)\n"},
      {{"run", "--linear-backend", "x"}, 2,
       "E106 --linear-backend is a vLLM flag that qengine does not have\n  hint  kernels belong to plugins: --plugin-opt awq_marlin.kernel=NAME, names in qengine plugin info awq_marlin\n"},
      {{"inspect", "--prompt", "x"}, 2, "E101 unknown option --prompt\n  hint  --prompt belongs to qengine run\n"},
      {{"run", "a", "--model", "b"}, 2, "E101 two models: a and --model b\n  hint  MODEL and --model are one thing; give one of them\n"},
      {{"run", "--prompt", "x"}, 2, "E101 no model\n  hint  qengine run MODEL, or --model MODEL: a folder or a .gguf file\n"},
      {{"run", "m", "x y"}, 2, "E101 unexpected argument x y\n  hint  a prompt is given as --prompt \"...\"\n"},
      {{"run", "m", "--top-p", "2"}, 2, "E101 --top-p: \"2\" is not a number from 0 to 1\n"},
      {{"run", "m", "--config", "/nonexistent.toml"}, 2, "E102 cannot read /nonexistent.toml: No such file or directory\n"},
      {{"run", "/nonexistent", "--prompt", "x"}, 3, "E201 "},
  };
  for (const UsageCase& c : cases) {
    const auto o = run(c.args);
    EXPECT_EQ(o.code, c.code) << c.args[0];
    EXPECT_EQ(o.err.substr(0, c.text.size()), c.text);
    EXPECT_EQ(o.out, "");
    EXPECT_EQ(o.err.find('\033'), std::string::npos);
  }
}

TEST(Usage, AnExistingModelNamedFirstGetsTheRightHint) {
  const auto o = run({test::source_dir().string()});
  EXPECT_EQ(o.code, 2);
  EXPECT_NE(o.err.find("to run a model: qengine run "), std::string::npos) << o.err;
}

TEST(PrintConfig, SaysWhereEveryValueComesFrom) {
  const fs::path file = fs::path(::testing::TempDir()) / ("print" + std::to_string(getpid()) + ".toml");
  std::ofstream(file) << "schema = 1\n[engine]\nseed = 5\nblock_size = 32\n[server]\napi_key = \"hunter2\"\n[sampling]\ntemperature = 0.5\n";
  const auto o = run({.args = {"run", "/m", "--config", file.string(), "--print-config", "--top-k", "3"},
                      .environment = {{"QENGINE_BLOCK_SIZE", "64"}, {"QENGINE_BLOCKSIZE", "1"}}});
  EXPECT_EQ(o.code, 0) << o.err;
  for (const std::string& line : {"seed = 5  # " + file.string() + ":3:1", std::string("block_size = 64  # env QENGINE_BLOCK_SIZE"),
                                  std::string("top_k = 3  # flag --top-k"), std::string("path = \"/m\"  # argument"),
                                  std::string("enable_chunked_prefill = true  # default"), "temperature = 0.5  # " + file.string() + ":8:1"})
    EXPECT_NE(o.out.find(line + "\n"), std::string::npos) << line << "\n" << o.out;
  EXPECT_EQ((o.out + o.err).find("hunter2"), std::string::npos);
  EXPECT_NE(o.err.find("QENGINE_BLOCKSIZE is not known; did you mean QENGINE_BLOCK_SIZE?"), std::string::npos) << o.err;
  fs::remove(file);
}

// Every flag and command that a hint anywhere in the sources names exists in this program.
TEST(Hints, NameOnlyWhatExists) {
  std::set<std::string> flags, known{"help"};
  const std::regex flag("--(\\[no-\\])?([a-z][a-z0-9-]*)");
  for (const std::string& c : commands()) {
    known.insert(c);
    known.insert(c.substr(0, c.find(' ')));
    std::vector<std::string> args = split(c);
    args.push_back("--help");
    const std::string text = run(args).out;
    for (std::sregex_iterator i(text.begin(), text.end(), flag), end; i != end; ++i) flags.insert((*i)[2]);
  }
  for (const SettingGroup* g : profile_groups())
    for (const Setting& s : g->settings) flags.insert(s.name);
  flags.insert("version");

  // The string literals of each statement that calls hint(), and of the table of vLLM's flags.
  const std::regex literal("\"((?:[^\"\\\\]|\\\\.)*)\""), command("qengine ((?:[a-z]+-?)+)");
  const std::set<std::string> prose{"reads", "has", "may"};  // "qengine has no such part"
  std::size_t hints = 0;
  for (const char* room : {"core", "apps", "plugins"})
    for (const auto& entry : fs::recursive_directory_iterator(test::source_dir() / room)) {
      const std::string extension = entry.path().extension();
      if (extension != ".cpp" && extension != ".hpp") continue;
      std::ifstream in(entry.path());
      const std::string source(std::istreambuf_iterator<char>(in), {});
      const bool table = entry.path().filename() == "vllm_flags.cpp";
      for (std::size_t at = table ? 0 : source.find(".hint("); at != source.npos; at = table ? source.npos : source.find(".hint(", at + 1)) {
        const std::string statement = table ? source : source.substr(at, source.find(";\n", at) - at);
        for (std::sregex_iterator i(statement.begin(), statement.end(), literal), end; i != end; ++i) {
          const std::string text = (*i)[1];
          ++hints;
          for (std::sregex_iterator f(text.begin(), text.end(), flag); f != std::sregex_iterator(); ++f) {
            const std::string name = (*f)[2];
            EXPECT_TRUE(flags.count(name) || (name.starts_with("no-") && flags.count(name.substr(3))) || name == "x" || name == "no-") << entry.path() << ": " << text;
          }
          for (std::sregex_iterator c(text.begin(), text.end(), command); c != std::sregex_iterator(); ++c)
            EXPECT_TRUE(known.count((*c)[1]) || prose.count((*c)[1])) << entry.path() << ": " << text;
        }
      }
    }
  EXPECT_GT(hints, 50u);
}

}  // namespace
}  // namespace qengine
