#include "apps/qengine/run_record.hpp"

#include <sys/sysinfo.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <thread>

#include "apps/qengine/plugin_text.hpp"
#include "core/base/build_info.hpp"
#include "core/base/thread_pool.hpp"
#include "core/plugin_host/sha256.hpp"

namespace qengine {
namespace {

namespace fs = std::filesystem;

constexpr std::streamoff kEnd = 1 << 20;  // of a file that is not read whole

std::string first_line(const char* file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

std::string ends_of(const fs::path& file, std::uint64_t size) {
  std::ifstream in(file, std::ios::binary);
  std::string out(static_cast<std::size_t>(std::min<std::uint64_t>(size, kEnd)), '\0');
  in.read(out.data(), static_cast<std::streamsize>(out.size()));
  if (size > static_cast<std::uint64_t>(kEnd)) {
    std::string last(static_cast<std::size_t>(kEnd), '\0');
    in.seekg(-kEnd, std::ios::end);
    in.read(last.data(), kEnd);
    out += last;
  }
  return out;
}

}  // namespace

Json program_record() {
  const BuildInfo& b = build_info();
  Json j{{"version", b.version}, {"commit", b.commit}, {"compiler", b.compiler}, {"flags", b.flags}};
  if (!b.cuda.empty()) j["cuda"] = b.cuda;
  j["plugin_abi"] = std::to_string(b.abi_major) + "." + std::to_string(b.abi_minor);
  return j;
}

Json model_record(const fs::path& model) {
  const auto checkpoint = Checkpoint::open(model);
  std::string hashed;
  std::uint64_t bytes = 0;
  for (const Checkpoint::File& f : checkpoint->files()) {
    hashed += f.path.filename().string() + "\n" + std::to_string(f.bytes) + "\n" + sha256_of(ends_of(f.path, f.bytes)) + "\n";
    bytes += f.bytes;
  }
  std::error_code ec;
  if (checkpoint->kind() != Checkpoint::Kind::kGguf)
    for (const char* name : {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"})
      if (fs::exists(checkpoint->folder() / name, ec)) hashed += std::string(name) + "\n" + sha256_of(read_text((checkpoint->folder() / name).string())) + "\n";
  const ModelConfig config = read_model_config(*checkpoint);
  return {{"path", model.string()}, {"sha256", sha256_of(hashed)}, {"file_bytes", bytes}, {"architecture", config.architecture}, {"layers", config.num_layers}, {"hidden", config.hidden_size}, {"vocab", config.vocab_size}};
}

Json plugins_record(const Invocation& in) {
  PluginHost host(plugin_options(in));
  host.scan();
  Json out = Json::array();
  for (const auto& p : host.plugins()) out.push_back({{"name", p->name}, {"version", p->version}, {"sha256", p->sha256}});
  return out;
}

Json machine_record(bool gpu) {
  utsname u{};
  uname(&u);
  struct sysinfo s {};
  sysinfo(&s);
  std::string processor = "unknown processor";
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("model name")) {
      processor = line.substr(line.find(':') + 2);
      break;
    }
  Json j{{"processor", processor}, {"threads", std::thread::hardware_concurrency()}, {"cores", ThreadPool::physical_cores()}, {"memory_bytes", static_cast<std::uint64_t>(s.totalram) * s.mem_unit},
         {"system", std::string(u.sysname) + " " + u.release + " " + u.machine}};
  if (const std::string governor = first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"); !governor.empty()) j["governor"] = governor;
  if (const std::string load = first_line("/proc/loadavg"); !load.empty()) j["load_average"] = load.substr(0, load.find(' '));
  if (!gpu) return j;
  // The driver's own tool knows clocks, power and throttling; where it is missing the report says less.
  if (std::FILE* p = popen("nvidia-smi --query-gpu=name,uuid,driver_version,memory.total,ecc.mode.current,power.limit,clocks.sm,clocks.mem,temperature.gpu,clocks_throttle_reasons.active --format=csv 2>/dev/null", "r")) {
    std::string text;
    char buffer[4096];
    for (std::size_t n; (n = std::fread(buffer, 1, sizeof buffer, p)) > 0;) text.append(buffer, n);
    if (pclose(p) == 0 && !text.empty()) j["gpu"] = text;
  }
  return j;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm tm{};
  gmtime_r(&now, &tm);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &tm);
  return text;
}

}  // namespace qengine
