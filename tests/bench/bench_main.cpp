#include <sys/mman.h>

#include <chrono>
#include <cstdio>

#include "tests/bench/bench.hpp"

namespace qe_bench {

qengine::ThreadPool& pool() {
  static qengine::ThreadPool p(2);
  return p;
}

namespace {
std::byte* top = nullptr;
}

std::byte* allocate(std::size_t bytes) {
  std::byte* here = top;
  top += (bytes + 63) / 64 * 64;
  return here;
}
std::byte* release_mark(std::byte* to) {
  if (to) top = to;
  return top;
}

double read_bandwidth() {
  static const double best = [] {
    constexpr std::int64_t kBytes = std::int64_t{512} << 20, kParts = 64;
    std::vector<std::uint64_t> data(kBytes / 8, 1), sums(kParts * 8);
    double top_rate = 0;
    for (int rep = 0; rep < 5; ++rep) {
      const auto start = std::chrono::steady_clock::now();
      pool().parallel_for(kParts, [&](std::int64_t i) {
        const std::uint64_t* p = data.data() + i * (kBytes / 8 / kParts);
        std::uint64_t s[8] = {};
        for (std::int64_t j = 0; j < kBytes / 8 / kParts; j += 8)
          for (int k = 0; k < 8; ++k) s[k] += p[j + k];
        for (int k = 0; k < 8; ++k) sums[std::size_t(i * 8 + k)] += s[k];
      });
      const double t = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      top_rate = std::max(top_rate, double(kBytes) / t * 1e-9);
    }
    benchmark::DoNotOptimize(sums.data());
    return top_rate;
  }();
  return best;
}

}  // namespace qe_bench

int main(int argc, char** argv) {
  using namespace qe_bench;
  static qe_host host{};
  host.struct_size = sizeof host;
  host.parallel_for = [](void*, std::int64_t n, void (*body)(void*, std::int64_t), void* arg) noexcept { pool().run(n, body, arg); };
  host.threads = [](void*) noexcept -> std::int32_t { return pool().threads(); };
  host.free = [](void*, const qe_device*, void*) noexcept {};
  qe::detail::host_table = &host;
  const std::size_t room = std::size_t{1} << 30;
  top = static_cast<std::byte*>(mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  madvise(top, room, MADV_HUGEPAGE);
  std::printf("%d threads, %.1f GB/s read, %s\n", pool().threads(), read_bandwidth(), qe::cpu::isa_name(qe::cpu::isa()));
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
