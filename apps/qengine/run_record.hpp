// What identifies a run: program, model, plugins, machine. Kept with every report, so that two figures can be known to be comparable.
#pragma once

#include <filesystem>

#include "apps/qengine/command.hpp"
#include "apps/qengine/model_setup.hpp"

namespace qengine {

Json program_record();
// sha256 over name, size, first and last MiB of every file of weights, and over config.json and the tokenizer: changes that matter
// are seen without reading everything. Throws Error E2xx when there is no model.
Json model_record(const std::filesystem::path& model);
Json plugins_record(const Invocation& in);
// Processor, cores, memory, governor, kernel; the GPUs as their driver names them, with clocks, when `gpu`.
Json machine_record(bool gpu);
std::string utc_now();  // "2026-11-29T21:30:00Z"

}  // namespace qengine
