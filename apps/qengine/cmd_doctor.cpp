// doctor: what this machine and this installation can do, and what stands in the way. Loads no model.
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "apps/qengine/command.hpp"
#include "apps/qengine/model_setup.hpp"
#include "apps/qengine/plugin_text.hpp"
#include "core/base/build_info.hpp"
#include "core/device/gemm.hpp"
#include "core/device/gpu.hpp"
#include "core/kv/kv_size.hpp"

namespace qengine {
namespace {

namespace fs = std::filesystem;

struct Finding {
  std::string area, name, status, value, remedy;  // status: ok, warn, fail
};

class Findings {
 public:
  void ok(const char* area, std::string name, std::string value) { all_.push_back({area, std::move(name), "ok", std::move(value), ""}); }
  void warn(const char* area, std::string name, std::string value, std::string remedy) { all_.push_back({area, std::move(name), "warn", std::move(value), std::move(remedy)}); }
  void fail(const char* area, std::string name, std::string value, std::string remedy) { all_.push_back({area, std::move(name), "fail", std::move(value), std::move(remedy)}); }
  const std::vector<Finding>& all() const { return all_; }
  int count(const char* status) const {
    int n = 0;
    for (const Finding& f : all_) n += f.status == status;
    return n;
  }

 private:
  std::vector<Finding> all_;
};

std::string first_line(const char* file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

std::string cpu_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown processor";
}

void machine(Findings& out) {
  utsname u{};
  uname(&u);
  out.ok("machine", "system", std::string(u.sysname) + " " + u.release + " " + u.machine);
  out.ok("machine", "cpu", cpu_name() + ", " + std::to_string(std::max(1u, std::thread::hardware_concurrency())) + " threads");
#if defined(__x86_64__)
  std::string features;
  const auto has = [&](const char* name, bool present) {
    if (present) features += (features.empty() ? "" : " ") + std::string(name);
  };
  has("avx2", __builtin_cpu_supports("avx2"));
  has("fma", __builtin_cpu_supports("fma"));
  has("avx512f", __builtin_cpu_supports("avx512f"));
  has("avx512bw", __builtin_cpu_supports("avx512bw"));
  has("avx512vnni", __builtin_cpu_supports("avx512vnni"));
  has("avx512bf16", __builtin_cpu_supports("avx512bf16"));
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) out.ok("machine", "cpu features", features);
  else out.warn("machine", "cpu features", features.empty() ? "none used here" : features, "without avx2 and fma the readable kernels run: right, and many times slower");
#else
  out.warn("machine", "cpu features", "none used here", "fast CPU kernels are for x86-64: the readable ones run");
#endif
  const double total = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE)), free = static_cast<double>(free_memory());
  const std::string memory = size_text(free) + " free of " + size_text(total);
  if (free < 1e9) out.warn("machine", "memory", memory, "models larger than that will not load; stop something, or raise the limit of the container");
  else out.ok("machine", "memory", memory);
}

void gpus(Findings& out) {
  const std::string driver = first_line("/proc/driver/nvidia/version");
  int nodes = 0;
  bool readable = true;
  std::error_code ec;
  for (const auto& entry : fs::directory_iterator("/dev", ec)) {
    const std::string name = entry.path().filename().string();
    if (name.size() < 7 || !name.starts_with("nvidia") || name.find_first_not_of("0123456789", 6) != name.npos) continue;
    ++nodes;
    readable &= access(entry.path().c_str(), R_OK | W_OK) == 0;
  }
  if (nodes == 0) out.ok("gpu", "devices", "none: models run on the CPU (--device cpu)");
  else if (!readable) out.fail("gpu", "devices", std::to_string(nodes) + " present, not all may be opened", "let this user read and write /dev/nvidia*, or start the container with its GPUs");
  else out.ok("gpu", "devices", std::to_string(nodes));
  if (!driver.empty()) out.ok("gpu", "driver", driver);
  else if (nodes > 0) out.fail("gpu", "driver", "not loaded", "install the NVIDIA driver, or load its kernel module");
  for (const GpuInfo& g : list_gpus().gpus) {
    const qe_device& d = g.device;
    out.ok("gpu", g.label(), g.name + ", sm_" + std::to_string(d.sm) + ", " + std::to_string(d.sm_count) + " multiprocessors, " + size_text(static_cast<double>(d.mem_bytes)) + ", driver for CUDA " +
                                 std::to_string(d.driver / 1000) + "." + std::to_string(d.driver % 1000 / 10));
    if (d.sm < 80) out.warn("gpu", g.label() + " kernels", "none for sm_" + std::to_string(d.sm), "kernels are for sm_80 and newer: --device cpu");
  }
  if (nodes > 0 && list_gpus().gpus.empty()) out.fail("gpu", "usable", list_gpus().why, "--device cpu works with every shipped plugin");
  if (!list_gpus().gpus.empty()) {
    if (dense_gemm()) out.ok("gpu", "dense products", dense_gemm_library());
    else out.warn("gpu", "dense products", "no cuBLASLt: " + why_no_gemm(), "install it (libcublas of the CUDA version of this build) or name the file in QENGINE_CUBLASLT: without, long prompts run many times slower");
  }
  if (!build_info().cuda.empty()) out.ok("gpu", "this build", "CUDA " + build_info().cuda);
  else if (nodes > 0) out.warn("gpu", "this build", "without CUDA", "build with the cuda preset to use the GPU");
}

void limits(Findings& out) {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  const std::string value = files.rlim_cur == RLIM_INFINITY ? "no limit" : std::to_string(files.rlim_cur);
  if (files.rlim_cur < 1024) out.warn("limits", "open files", value, "a server needs one for each connection: ulimit -n 4096");
  else out.ok("limits", "open files", value);
  rlimit space{};
  getrlimit(RLIMIT_AS, &space);
  if (space.rlim_cur == RLIM_INFINITY) out.ok("limits", "address space", "no limit");
  else out.warn("limits", "address space", size_text(static_cast<double>(space.rlim_cur)), "files are mapped: it must hold the checkpoint and the packed weights (ulimit -v unlimited)");
}

// How well a method runs on a device: the best tier of the rows that cover it, 0 when none does.
int best_tier(const PluginMethod& m, const qe_device& d) {
  int best = 0;
  for (const qe_capability& c : m.rows) {
    const bool covers = c.kind == d.kind && (c.kind == QE_CPU || (d.sm >= c.sm_min && (c.sm_max == 0 || d.sm <= c.sm_max)));
    if (covers && (best == 0 || c.tier < best)) best = c.tier;
  }
  return best;
}

std::string status_of_tier(int best) { return best == 1 ? "native" : best == 2 ? "weight-only" : best == 3 ? "reference" : "not at all"; }

void plugins(const Invocation& in, Findings& out, Json& table_of) {
  PluginHost host(plugin_options(in));
  host.scan();
  if (host.plugins().empty()) out.fail("plugins", "installed", "none", "they lie in plugins/ beside the program, or where --plugin-path says");
  std::set<fs::path> folders;
  for (const auto& p : host.plugins()) {
    folders.insert(p->path.parent_path());
    Json schemes = Json::array();
    std::string summary;
    for (const PluginMethod& m : p->methods) {
      const std::string by = m.replacement.empty() ? "" : "by " + m.replacement;
      Json scheme{{"scheme", m.name}, {"cpu", by.empty() ? status_of_tier(best_tier(m, cpu_device())) : by}, {"devices", capabilities_of(m)}};
      for (const GpuInfo& g : list_gpus().gpus) scheme[g.label()] = by.empty() ? status_of_tier(best_tier(m, g.device)) : by;
      schemes.push_back(std::move(scheme));
    }
    for (const Json& s : schemes) summary += (summary.empty() ? "" : ", ") + s["scheme"].get<std::string>() + " " + s["cpu"].get<std::string>();
    table_of.push_back({{"plugin", p->name}, {"version", p->version}, {"trust", p->trust}, {"schemes", std::move(schemes)}});
    out.ok("plugins", p->name + " " + p->version, summary.empty() ? p->summary : "on this CPU: " + summary);
  }
  for (const RefusedPlugin& r : host.refused())
    out.warn("plugins", r.name.empty() ? r.path.filename().string() : r.name, "refused: " + r.reason.substr(0, r.reason.find('\n')), r.code == "E302" ? "after checking its source: qengine plugin trust " + r.path.string() + " --yes" : "qengine plugin list says more");
  // What others may write here runs with our rights.
  for (const fs::path& folder : folders) {
    struct stat s{};
    if (stat(folder.c_str(), &s) == 0 && (s.st_mode & S_IWOTH) && !(s.st_mode & S_ISVTX)) out.fail("plugins", "folder " + folder.string(), "anybody may write there", "chmod o-w " + folder.string());
  }
  try {
    host.check_options();
  } catch (const Error& e) {
    out.fail("plugins", "options", e.message(), std::string(e.find("hint")));
  }
  out.ok("plugins", "trust", "--trust " + in.values.text("trust") + ", " + std::to_string(in.profile.allow.size()) + " allowed by hash");
}

int run(const Invocation& in) {
  Findings found;
  Json by_plugin = Json::array();
  machine(found);
  gpus(found);
  limits(found);
  plugins(in, found, by_plugin);
  found.ok("config", "profile", in.profile.path.empty() ? "none" : in.profile.path.string() + ", read without errors");

  if (in.json()) {
    Json doc = json_document(in.command);
    Json& list = doc["checks"] = Json::array();
    for (const Finding& f : found.all()) {
      Json j{{"area", f.area}, {"name", f.name}, {"status", f.status}, {"value", f.value}};
      if (!f.remedy.empty()) j["remedy"] = f.remedy;
      list.push_back(std::move(j));
    }
    doc["plugins"] = std::move(by_plugin);
    doc["warnings"] = found.count("warn");
    doc["failures"] = found.count("fail");
    print_json(doc);
  } else {
    std::string out, area;
    for (const Finding& f : found.all()) {
      if (f.area != area) out += (area.empty() ? "" : "\n") + f.area + "\n";
      area = f.area;
      out += "  " + f.status + std::string(6 - f.status.size(), ' ') + f.name + ": " + f.value + "\n";
      if (!f.remedy.empty()) out += "        " + f.remedy + "\n";
    }
    out += "\n" + std::to_string(found.count("fail")) + " failures, " + std::to_string(found.count("warn")) + " warnings\n";
    print(out);
  }
  return found.count("fail") ? 5 : 0;
}

}  // namespace

extern const Command doctor_command;
const Command doctor_command = {
    .name = "doctor",
    .summary = "what this machine can run, natively or not, and what stands in the way",
    .usage = {"", "--json"},
    .groups = {&plugin_settings(), &model_settings()},
    .run = run,
};

}  // namespace qengine
