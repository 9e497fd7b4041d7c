#include "core/conformance/step_watch.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace qengine::conformance {
namespace {

constinit thread_local bool stepping = false;

struct Watched {
  const char* name;
  const char* shown;
};
constexpr std::array<Watched, 31> kWatched{{{"malloc", "malloc"}, {"calloc", "calloc"}, {"realloc", "realloc"}, {"aligned_alloc", "aligned_alloc"},
    {"posix_memalign", "posix_memalign"}, {"memalign", "memalign"}, {"mmap", "mmap"}, {"mmap64", "mmap"},
    {"_Znwm", "operator new"}, {"_Znam", "operator new[]"}, {"_ZnwmSt11align_val_t", "operator new"}, {"_ZnamSt11align_val_t", "operator new[]"},
    {"_ZnwmRKSt9nothrow_t", "operator new"}, {"_ZnamRKSt9nothrow_t", "operator new[]"},
    {"pthread_mutex_lock", "pthread_mutex_lock"}, {"pthread_mutex_trylock", "pthread_mutex_trylock"}, {"pthread_rwlock_rdlock", "pthread_rwlock_rdlock"},
    {"pthread_rwlock_wrlock", "pthread_rwlock_wrlock"}, {"pthread_cond_wait", "pthread_cond_wait"}, {"pthread_cond_timedwait", "pthread_cond_timedwait"},
    {"sem_wait", "sem_wait"}, {"open", "open"}, {"open64", "open"}, {"openat", "openat"}, {"fopen", "fopen"}, {"fopen64", "fopen"},
    {"write", "write"}, {"fwrite", "fwrite"}, {"pthread_create", "pthread_create"}, {"usleep", "usleep"}, {"nanosleep", "nanosleep"}}};

std::array<std::atomic<int>, kWatched.size()> counts;
std::array<void*, kWatched.size()> originals;

// Six words are enough for every function of the list, whatever its own arguments are.
using Any = std::uintptr_t (*)(std::uintptr_t, std::uintptr_t, std::uintptr_t, std::uintptr_t, std::uintptr_t, std::uintptr_t);

template <std::size_t I>
std::uintptr_t counted(std::uintptr_t a, std::uintptr_t b, std::uintptr_t c, std::uintptr_t d, std::uintptr_t e, std::uintptr_t f) {
  const bool was = stepping;
  if (was) counts[I].fetch_add(1, std::memory_order_relaxed);
  stepping = false;  // operator new calls malloc: once is enough
  struct Back {
    bool was;
    ~Back() { stepping = was; }  // also when operator new throws
  } back{was};
  return reinterpret_cast<Any>(originals[I])(a, b, c, d, e, f);
}

template <std::size_t... I>
constexpr std::array<void*, sizeof...(I)> counting(std::index_sequence<I...>) {
  return {reinterpret_cast<void*>(&counted<I>)...};
}

bool is_slot(std::uint64_t type) {
#if defined(__x86_64__)
  return type == R_X86_64_JUMP_SLOT || type == R_X86_64_GLOB_DAT;
#elif defined(__aarch64__)
  return type == R_AARCH64_JUMP_SLOT || type == R_AARCH64_GLOB_DAT;
#else
  (void)type;
  return false;
#endif
}

void redirect(const link_map* map) {
  static const auto replacements = counting(std::make_index_sequence<kWatched.size()>());
  const ElfW(Sym)* symbols = nullptr;
  const char* strings = nullptr;
  std::pair<const ElfW(Rela)*, std::uint64_t> tables[2] = {{nullptr, 0}, {nullptr, 0}};
  for (const ElfW(Dyn)* d = map->l_ld; d->d_tag != DT_NULL; ++d) {
    if (d->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym)*>(d->d_un.d_ptr);
    if (d->d_tag == DT_STRTAB) strings = reinterpret_cast<const char*>(d->d_un.d_ptr);
    if (d->d_tag == DT_JMPREL) tables[0].first = reinterpret_cast<const ElfW(Rela)*>(d->d_un.d_ptr);
    if (d->d_tag == DT_PLTRELSZ) tables[0].second = d->d_un.d_val;
    if (d->d_tag == DT_RELA) tables[1].first = reinterpret_cast<const ElfW(Rela)*>(d->d_un.d_ptr);
    if (d->d_tag == DT_RELASZ) tables[1].second = d->d_un.d_val;
  }
  if (!symbols || !strings) return;
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  for (const auto& [table, bytes] : tables)
    for (std::uint64_t i = 0; table && i < bytes / sizeof(ElfW(Rela)); ++i) {
      const ElfW(Rela)& r = table[i];
      if (!is_slot(ELF64_R_TYPE(r.r_info))) continue;
      const std::string_view name = strings + symbols[ELF64_R_SYM(r.r_info)].st_name;
      for (std::size_t w = 0; w < kWatched.size(); ++w) {
        if (name != kWatched[w].name) continue;
        if (!originals[w]) originals[w] = dlsym(RTLD_DEFAULT, kWatched[w].name);
        if (!originals[w]) continue;
        auto* slot = reinterpret_cast<void**>(map->l_addr + r.r_offset);
        const auto from = reinterpret_cast<std::uintptr_t>(slot) / page * page;
        // The table is read-only once the loader is through with it.
        if (mprotect(reinterpret_cast<void*>(from), page, PROT_READ | PROT_WRITE) == 0) *slot = replacements[w];
      }
    }
}

}  // namespace

void watch_steps() {
  for (const link_map* map = _r_debug.r_map; map; map = map->l_next) {
    const std::string_view file = map->l_name ? map->l_name : "";
    const std::string_view name = file.substr(file.rfind('/') + 1);
    // the program itself has no name; the loader, libc and the sanitizers serve the counters
    if (name.empty() || name.starts_with("linux-vdso") || name.starts_with("ld-linux") || name.starts_with("libc.so") || name.starts_with("libasan") || name.starts_with("libtsan") || name.starts_with("libubsan"))
      continue;
    redirect(map);
  }
}

StepScope::StepScope() : before_(stepping) { stepping = true; }
StepScope::~StepScope() { stepping = before_; }
HostScope::HostScope() : before_(stepping) { stepping = false; }
HostScope::~HostScope() { stepping = before_; }
bool in_step() { return stepping; }

std::vector<std::string> take_step_calls() {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < kWatched.size(); ++i)
    if (const int n = counts[i].exchange(0)) out.push_back(std::string(kWatched[i].shown) + (n == 1 ? " once" : " " + std::to_string(n) + " times"));
  return out;
}

}  // namespace qengine::conformance
