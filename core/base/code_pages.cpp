#include "core/base/code_pages.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstring>

namespace qengine {

void release_code_pages() {
  std::FILE* smaps = std::fopen("/proc/self/smaps", "re");
  if (!smaps) return;
  char line[4352];
  std::uintptr_t begin = 0, end = 0;  // of the mapping that is being described; 0: not one of ours
  while (std::fgets(line, sizeof line, smaps)) {
    unsigned long long from, to, offset, inode;
    char permissions[5], device[16];
    unsigned long copied;
    if (std::sscanf(line, "%llx-%llx %4s %llx %15s %llu", &from, &to, permissions, &offset, device, &inode) == 6) {
      const bool ours = inode != 0 && permissions[0] == 'r' && permissions[1] == '-' && permissions[3] == 'p';
      begin = ours ? static_cast<std::uintptr_t>(from) : 0;
      end = static_cast<std::uintptr_t>(to);
    } else if (begin && std::sscanf(line, "Anonymous: %lu", &copied) == 1) {
      if (copied == 0) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
      begin = 0;
    }
  }
  std::fclose(smaps);
}

}  // namespace qengine
