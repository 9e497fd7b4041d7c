// Which kernels run is asked of the processor; the kernel of the system knows it too, and leaves out what it does not keep for a thread.
#include <gtest/gtest.h>
#include <qe/cpu/input.hpp>

#include <fstream>
#include <set>
#include <sstream>
#include <string>

namespace {

std::set<std::string> flags() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("flags")) {
      std::istringstream words(line.substr(line.find(':') + 1));
      return {std::istream_iterator<std::string>(words), {}};
    }
  return {};
}

TEST(Cpuid, AnswersWhatTheSystemKnowsOfTheProcessor) {
  const std::set<std::string> there = flags();
  if (there.empty()) GTEST_SKIP() << "/proc/cpuinfo names no flags here";
  const auto all = [&](std::initializer_list<const char*> names) {
    for (const char* n : names)
      if (!there.contains(n)) return false;
    return true;
  };
  using qe::cpu::Isa;
  const bool narrow = all({"avx2", "fma", "f16c"}), wide = narrow && all({"avx512f", "avx512vl", "avx512bw", "avx512dq", "avx512_vnni"});
  EXPECT_EQ(qe::cpu::machine_isa(), wide ? Isa::avx512 : narrow ? Isa::avx2 : Isa::scalar);
}

}  // namespace
