// One spdlog logger per room: log("kv"), log("scheduler"), log("plugins"). All write to stderr.
//
// error: something asked for will not happen. warn: it will, but slower or otherwise than asked.
// info: once per start or request. debug: per step. trace: per layer.
#pragma once

#include <spdlog/spdlog.h>

#include <string>
#include <string_view>

namespace qengine {

// The logger of a room; made on first use. Thread-safe; the reference lives as long as the process.
spdlog::logger& log(std::string_view room);

// level: trace debug info warn error off. json: one JSON object a line instead of text.
void set_log_level(std::string_view level);
void set_log_json(bool json);

}  // namespace qengine
