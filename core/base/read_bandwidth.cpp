#include "core/base/read_bandwidth.hpp"

#include <sys/mman.h>

#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace qengine {
namespace {

constexpr std::size_t kBytes = std::size_t{256} << 20;  // far beyond any cache
constexpr int kRounds = 16;

std::uint64_t read_plain(const std::uint64_t* p) {
  std::uint64_t a = 0, b = 0, c = 0, d = 0;
  for (std::size_t i = 0; i < kBytes / 8; i += 4) a ^= p[i], b ^= p[i + 1], c ^= p[i + 2], d ^= p[i + 3];
  return a ^ b ^ c ^ d;
}

#if defined(__x86_64__)
// Four independent loads an iteration keep the load ports busy; the compiler may not drop them, since
// their sum is returned.
__attribute__((target("avx2"))) std::uint64_t read_avx2(const void* memory) {
  const __m256i* p = static_cast<const __m256i*>(memory);
  __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
  for (std::size_t i = 0; i < kBytes / 32; i += 4) {
    a = _mm256_xor_si256(a, _mm256_load_si256(p + i));
    b = _mm256_xor_si256(b, _mm256_load_si256(p + i + 1));
    c = _mm256_xor_si256(c, _mm256_load_si256(p + i + 2));
    d = _mm256_xor_si256(d, _mm256_load_si256(p + i + 3));
  }
  a = _mm256_xor_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(c, d));
  return static_cast<std::uint64_t>(_mm256_extract_epi64(a, 0) ^ _mm256_extract_epi64(a, 1) ^ _mm256_extract_epi64(a, 2) ^ _mm256_extract_epi64(a, 3));
}
#endif

}  // namespace

double read_bandwidth(int threads) {
  std::vector<double> best(threads, 0);
  std::barrier together(threads);
  std::vector<std::thread> workers;
  for (int t = 0; t < threads; ++t)
    workers.emplace_back([&, t] {
      void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (memory != MAP_FAILED) std::memset(memory, 1, kBytes);  // real pages, not the one page of zeros
      volatile std::uint64_t sink = 0;
      for (int round = 0; round < kRounds; ++round) {
        together.arrive_and_wait();
        if (memory == MAP_FAILED) continue;
        const auto begin = std::chrono::steady_clock::now();
#if defined(__x86_64__)
        sink = __builtin_cpu_supports("avx2") ? read_avx2(memory) : read_plain(static_cast<const std::uint64_t*>(memory));
#else
        sink = read_plain(static_cast<const std::uint64_t*>(memory));
#endif
        const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        best[t] = std::max(best[t], kBytes / s);
      }
      (void)sink;
      if (memory != MAP_FAILED) munmap(memory, kBytes);
    });
  for (auto& w : workers) w.join();
  double sum = 0;
  for (const double b : best) sum += b;
  return sum;
}

}  // namespace qengine
