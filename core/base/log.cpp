#include "core/base/log.hpp"

#include <spdlog/sinks/stdout_sinks.h>

#include <map>
#include <mutex>

namespace qengine {
namespace {

struct Loggers {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<spdlog::logger>, std::less<>> by_room;
  spdlog::level::level_enum level = spdlog::level::warn;
  std::shared_ptr<spdlog::sinks::sink> sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  bool json = false;

  void set_pattern() {
    sink->set_pattern(json ? R"({"time":"%Y-%m-%dT%H:%M:%S.%e","level":"%l","room":"%n","text":"%v"})"
                           : "[%l] [%n] %v");
  }
  Loggers() { set_pattern(); }
};

Loggers& loggers() {
  static Loggers* const all = new Loggers;  // never destroyed: plugins may log at exit
  return *all;
}

}  // namespace

spdlog::logger& log(std::string_view room) {
  Loggers& all = loggers();
  const std::lock_guard lock(all.mutex);
  auto it = all.by_room.find(room);
  if (it == all.by_room.end()) {
    auto logger = std::make_shared<spdlog::logger>(std::string(room), all.sink);
    logger->set_level(all.level);
    it = all.by_room.emplace(room, std::move(logger)).first;
  }
  return *it->second;
}

void set_log_level(std::string_view level) {
  Loggers& all = loggers();
  const std::lock_guard lock(all.mutex);
  all.level = spdlog::level::from_str(std::string(level));
  for (auto& [room, logger] : all.by_room) logger->set_level(all.level);
}

void set_log_json(bool json) {
  Loggers& all = loggers();
  const std::lock_guard lock(all.mutex);
  all.json = json;
  all.set_pattern();
}

}  // namespace qengine
