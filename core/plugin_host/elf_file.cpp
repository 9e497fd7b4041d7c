#include "core/plugin_host/elf_file.hpp"

#include <elf.h>

#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string_view>

#include "core/base/error.hpp"

namespace qengine {
namespace {

// The bytes of the file; every read is checked against its length.
class Bytes {
 public:
  Bytes(std::string bytes, std::string name) : bytes_(std::move(bytes)), name_(std::move(name)) {}
  template <class T>
  T at(std::uint64_t offset) const {
    if (offset > bytes_.size() || bytes_.size() - offset < sizeof(T)) damaged();
    T out;
    std::memcpy(&out, bytes_.data() + offset, sizeof out);
    return out;
  }
  std::string text(std::uint64_t offset) const {
    if (offset >= bytes_.size()) damaged();
    return std::string(bytes_.c_str() + offset);
  }
  std::uint64_t size() const { return bytes_.size(); }
  [[noreturn]] void damaged() const { throw Error("E307", name_ + " is a damaged ELF file").hint("build it again"); }

 private:
  std::string bytes_, name_;
};

bool newer(std::string_view a, std::string_view b) {  // 2.34 > 2.4
  while (!a.empty() || !b.empty()) {
    const auto take = [](std::string_view& s) {
      int n = 0;
      const auto end = std::from_chars(s.data(), s.data() + s.size(), n).ptr;
      s.remove_prefix(static_cast<std::size_t>(end - s.data()));
      if (!s.empty()) s.remove_prefix(1);
      return n;
    };
    const int x = take(a), y = take(b);
    if (x != y) return x > y;
  }
  return false;
}

// Containers of nvcc: a header of 16 bytes (magic, version, header size, size of what follows), then entries with
// kind at 0 (1 PTX, 2 cubin), header size at 4, payload size at 8, SM at 28.
void read_fatbin(const Bytes& file, std::uint64_t at, std::uint64_t size, std::vector<int>& out) {
  const std::uint64_t end = at + size;
  while (at + 16 <= end) {
    if (file.at<std::uint32_t>(at) != 0xba55ed50) {
      at += 8;
      continue;
    }
    const std::uint64_t body = at + file.at<std::uint16_t>(at + 6), stop = std::min(end, body + file.at<std::uint64_t>(at + 8));
    for (std::uint64_t entry = body; entry + 64 <= stop;) {
      const auto kind = file.at<std::uint16_t>(entry);
      const auto header = file.at<std::uint32_t>(entry + 4);
      const int sm = static_cast<int>(file.at<std::uint32_t>(entry + 28));
      if ((kind != 1 && kind != 2) || header < 64) break;
      out.push_back(kind == 1 ? -sm : sm);
      entry += header + file.at<std::uint64_t>(entry + 8);
    }
    at = std::max(stop, at + 16);
  }
}

}  // namespace

ElfFile ElfFile::read(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) throw Error("E307", file.string() + " cannot be opened: no such file");
  const Bytes b(std::string(std::istreambuf_iterator<char>(in), {}), file.string());
  if (b.size() < sizeof(Elf64_Ehdr)) b.damaged();
  const auto head = b.at<Elf64_Ehdr>(0);
  if (std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 || head.e_ident[EI_CLASS] != ELFCLASS64 || head.e_ident[EI_DATA] != ELFDATA2LSB || head.e_type != ET_DYN)
    throw Error("E307", file.string() + " is no shared library for this machine").hint("the file may be damaged, or built for another system");

  ElfFile out;
  std::vector<Elf64_Shdr> sections;
  for (int i = 0; i < head.e_shnum; ++i) sections.push_back(b.at<Elf64_Shdr>(head.e_shoff + std::uint64_t(i) * head.e_shentsize));
  const auto strings_of = [&](const Elf64_Shdr& s) -> const Elf64_Shdr& {
    if (s.sh_link >= sections.size()) b.damaged();
    return sections[s.sh_link];
  };
  for (const Elf64_Shdr& s : sections) {
    if (s.sh_type == SHT_DYNSYM) {
      const std::uint64_t names = strings_of(s).sh_offset;
      for (std::uint64_t at = 0; at + sizeof(Elf64_Sym) <= s.sh_size; at += sizeof(Elf64_Sym)) {
        const auto symbol = b.at<Elf64_Sym>(s.sh_offset + at);
        const int bind = ELF64_ST_BIND(symbol.st_info), visibility = ELF64_ST_VISIBILITY(symbol.st_other);
        if (symbol.st_shndx == SHN_UNDEF || symbol.st_shndx == SHN_ABS || bind == STB_LOCAL || visibility == STV_HIDDEN || visibility == STV_INTERNAL) continue;
        out.exported.push_back({b.text(names + symbol.st_name), bind == STB_GNU_UNIQUE});
      }
    } else if (s.sh_type == SHT_DYNAMIC) {
      const std::uint64_t names = strings_of(s).sh_offset;
      for (std::uint64_t at = 0; at + sizeof(Elf64_Dyn) <= s.sh_size; at += sizeof(Elf64_Dyn)) {
        const auto d = b.at<Elf64_Dyn>(s.sh_offset + at);
        if (d.d_tag == DT_NEEDED) out.needed.push_back(b.text(names + d.d_un.d_val));
        if (d.d_tag == DT_RPATH || d.d_tag == DT_RUNPATH) out.has_rpath = true;
      }
    } else if (s.sh_type == SHT_GNU_verneed) {
      const std::uint64_t names = strings_of(s).sh_offset;
      std::uint64_t at = s.sh_offset;
      for (std::uint32_t i = 0; i < s.sh_info; ++i) {
        const auto need = b.at<Elf64_Verneed>(at);
        std::uint64_t aux = at + need.vn_aux;
        for (int j = 0; j < need.vn_cnt; ++j) {
          const auto v = b.at<Elf64_Vernaux>(aux);
          const std::string name = b.text(names + v.vna_name);
          if (const auto bar = name.find('_'); bar != std::string::npos && bar + 1 < name.size() && name[bar + 1] >= '0' && name[bar + 1] <= '9') {
            std::string& most = out.newest[name.substr(0, bar)];
            if (most.empty() || newer(name.substr(bar + 1), most)) most = name.substr(bar + 1);
          }
          aux += v.vna_next;
        }
        at += need.vn_next;
      }
    }
  }
  if (head.e_shstrndx < sections.size())
    for (const Elf64_Shdr& s : sections)
      if (s.sh_type != SHT_NOBITS && b.text(sections[head.e_shstrndx].sh_offset + s.sh_name) == ".nv_fatbin")
        read_fatbin(b, s.sh_offset, s.sh_size, out.device_code);
  return out;
}

}  // namespace qengine
