// main of a fuzz target where libFuzzer is not linked: every file given (or in a folder given) as it
// is, cut at many places, and with a few bytes changed at random. The changes are the same each run.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Bytes = std::vector<std::uint8_t>;

// The target sees a heap block of exactly its size, so that a sanitizer notices one byte too many.
void run(const Bytes& bytes) {
  const Bytes copy(bytes.begin(), bytes.end());
  LLVMFuzzerTestOneInput(copy.data(), copy.size());
}

long replay(const std::filesystem::path& file, bool vary) {
  std::ifstream in(file, std::ios::binary);
  const Bytes seed{std::istreambuf_iterator<char>(in), {}};
  run(seed);
  if (!vary) return 1;
  long runs = 1;
  const std::size_t step = seed.size() / 400 + 1;
  for (std::size_t n = 0; n < seed.size(); n += step, ++runs) run(Bytes(seed.begin(), seed.begin() + static_cast<long>(n)));
  std::mt19937 rng(static_cast<std::uint32_t>(seed.size()));
  for (int i = 0; i < 1000 && !seed.empty(); ++i, ++runs) {
    Bytes changed = seed;
    for (unsigned k = 0; k <= rng() % 4; ++k) {
      const std::size_t at = rng() % changed.size();
      const std::uint8_t values[] = {0, 1, 0x7f, 0x80, 0xff, static_cast<std::uint8_t>(rng()),
                                     static_cast<std::uint8_t>(changed[at] ^ (1u << rng() % 8))};
      changed[at] = values[rng() % std::size(values)];
    }
    run(changed);
  }
  return runs;
}

}  // namespace

int main(int argc, char** argv) {
  namespace fs = std::filesystem;
  long runs = 0;
  for (int i = 1; i < argc; ++i) {
    if (!fs::is_directory(argv[i])) {
      runs += replay(argv[i], false);
      continue;
    }
    for (const auto& entry : fs::directory_iterator(argv[i]))
      if (entry.is_regular_file()) runs += replay(entry.path(), true);
  }
  std::printf("%ld inputs\n", runs);
  return runs > 0 ? 0 : 1;
}
