// 1xx: the file, before and while it is loaded.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "core/plugin_host/elf_file.hpp"
#include "core/conformance/subject.hpp"

namespace qengine::conformance {
namespace {

void one_symbol(const Subject& s, Notes&) {
  const ElfFile elf = ElfFile::read(s.library);
  bool entry = false;
  std::string others;
  for (const ElfFile::Export& e : elf.exported) {
    if (e.name == "qe_plugin_query") entry = true;
    else if (!e.unique) others += (others.empty() ? "" : ", ") + e.name;  // unique ones are the business of QEP-103
  }
  if (!entry) fail("qe_plugin_query is not exported");
  if (!others.empty()) fail("it also exports %s; link with a version script and hidden visibility (qe_add_plugin does)", others.substr(0, 300).c_str());
}

void needed_libraries(const Subject& s, Notes& notes) {
  const ElfFile elf = ElfFile::read(s.library);
  std::string all;
  for (const std::string& n : elf.needed) {
    for (const char* gpu : {"libcuda.so", "libcudart.so", "libcublas", "libcudnn", "libnvrtc", "libamdhip"})
      if (n.starts_with(gpu)) fail("it needs %s, so it cannot load where that is absent; link the runtime statically", n.c_str());
    all += (all.empty() ? "" : " ") + n;
  }
  notes.push_back("needs " + (all.empty() ? "nothing" : all));
  for (const auto& [what, version] : elf.newest) notes.push_back("needs " + what + "_" + version + " or newer");
}

void no_unique(const Subject& s, Notes&) {
  for (const ElfFile::Export& e : ElfFile::read(s.library).exported)
    if (e.unique) fail("%s is a unique symbol: two versions in one process would share it; compile with -fno-gnu-unique", e.name.c_str());
}

void loads(const Subject& s, Notes&) {
  const Session session(s);
  if (!session.weight && !session.kv) fail("extension() offers neither qe.weight/1 nor qe.kv/1");
}

int threads_of_process() {
  int n = 0;
  for ([[maybe_unused]] const auto& t : std::filesystem::directory_iterator("/proc/self/task")) ++n;
  return n;
}

void silent(const Subject& s, Notes&) {
  // Both outputs into files while the library comes up.
  std::string name = (std::filesystem::temp_directory_path() / "qe-conform-XXXXXX").string();
  const int file = mkstemp(name.data());
  if (file < 0) fail("no temporary file can be made");
  unlink(name.c_str());
  const int before = threads_of_process();
  const int out = dup(1), err = dup(2);
  dup2(file, 1), dup2(file, 2);
  std::string problem;
  try {
    void* handle = open_library(s.library);
    query_descriptor(handle);
  } catch (const Failed& e) {
    problem = e.what();
  }
  fflush(nullptr);
  dup2(out, 1), dup2(err, 2);
  if (!problem.empty()) fail("%s", problem.c_str());
  char said[200];
  const ssize_t n = pread(file, said, sizeof said, 0);
  if (n > 0) fail("it writes while it is loaded: %s", plugin_text({said, static_cast<std::size_t>(n)}).c_str());
  if (threads_of_process() != before) fail("it starts a thread while it is loaded");
}

void query_is_constant(const Subject& s, Notes&) {
  void* handle = open_library(s.library);
  const qe_plugin *a = query_descriptor(handle), *b = query_descriptor(handle);
  if (!a) fail("qe_plugin_query(%d, %d) returns NULL", QE_ABI_MAJOR, QE_ABI_MINOR);
  if (a != b) fail("qe_plugin_query returns another pointer the second time");
  const qe_plugin* next = query_descriptor(handle, QE_ABI_MAJOR + 1);
  if (next && next->abi_major != QE_ABI_MAJOR + 1) fail("asked for ABI major %d, it returns a descriptor of major %u; it must return NULL", QE_ABI_MAJOR + 1, next->abi_major);
}

void device_code(const Subject& s, Notes& notes) {
  const ElfFile elf = ElfFile::read(s.library);
  Session session(s);
  std::vector<const qe_capability*> rows;
  for (std::uint32_t i = 0; i < session.plugin->n_methods; ++i)
    for (std::uint32_t r = 0; r < session.plugin->methods[i]->n_rows; ++r)
      if (session.plugin->methods[i]->rows[r]->kind == QE_CUDA) rows.push_back(session.plugin->methods[i]->rows[r]);
  if (rows.empty()) not_applicable("no method has a CUDA row");
  std::string have;
  for (const int sm : elf.device_code) have += (have.empty() ? "" : " ") + std::string(sm < 0 ? "ptx" : "sm") + std::to_string(std::abs(sm));
  notes.push_back("device code: " + (have.empty() ? "none" : have));
  // A cache whose blocks core's attention reads has no kernels of its own.
  if (!session.weight && session.kv && !session.kv->decode) not_applicable("its cache is read by the host's attention");
  if (elf.device_code.empty()) {  // the same source built without nvcc: right as long as plan says no
    qe_device gpu{};
    gpu.struct_size = sizeof gpu;
    gpu.kind = QE_CUDA, gpu.sm = 90, gpu.sm_count = 132, gpu.driver = 13000;
    if (session.weight)
      for (const Unit& u : session.units()) {
        LayerArgs l(*u.of, u.parts, u.k);
        if (session.plan(l, &gpu).claim) fail("%s: plan claims a GPU, and the library has no device code", u.name().c_str());
      }
    not_applicable("built without its CUDA part, and plan says so");
  }
  for (const qe_capability* r : rows) {
    // A build may be for some of the row's devices (a list of SMs); PTX serves everything from its number on.
    const int last = r->sm_max ? r->sm_max : 1000;
    const bool covered = std::any_of(elf.device_code.begin(), elf.device_code.end(), [&](int sm) { return sm < 0 ? -sm <= last : sm >= r->sm_min && sm <= last; });
    if (!covered) fail("a method claims CUDA from sm %d on, and the library has no code for it (%s)", r->sm_min, have.empty() ? "none at all" : have.c_str());
  }
}

}  // namespace

const std::vector<Check> binary_checks{
    {"QEP-101", "binary", "exports qe_plugin_query and nothing else", one_symbol},
    {"QEP-102", "binary", "needs no library of a GPU vendor", needed_libraries},
    {"QEP-103", "binary", "has no unique symbols", no_unique},
    {"QEP-104", "binary", "loads, and offers weights or a KV cache", loads, true},
    {"QEP-105", "binary", "says nothing and starts no thread while it is loaded", silent},
    {"QEP-106", "binary", "qe_plugin_query returns one descriptor, and none for another major", query_is_constant},
    {"QEP-107", "binary", "has device code for each CUDA row", device_code},
};

}  // namespace qengine::conformance
