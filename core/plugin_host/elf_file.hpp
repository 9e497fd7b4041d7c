// What an ELF file says of itself, read without loading it: exported names, needed libraries, symbol versions, device code.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace qengine {

struct ElfFile {
  struct Export {
    std::string name;
    bool unique = false;  // STB_GNU_UNIQUE: one object for the whole process, whatever dlopen was told
  };
  std::vector<Export> exported;               // defined, visible to others
  std::vector<std::string> needed;            // DT_NEEDED
  std::map<std::string, std::string> newest;  // "GLIBC" -> "2.34", "GLIBCXX" -> "3.4.30": what it asks of the system
  bool has_rpath = false;
  std::vector<int> device_code;               // SM numbers of cubins (90), PTX as its negative (-120); from .nv_fatbin

  // Throws Error E307 when the file is no 64-bit ELF library of this byte order, or is damaged.
  static ElfFile read(const std::filesystem::path& file);
};

}  // namespace qengine
