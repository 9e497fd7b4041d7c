// --load-format dummy: a model of known shape in a known format, without its files.
//
// Which tensors a format has is asked of the plugin that would read them: its plan and tensors() are
// pure and need no file. So a format that core never heard of can be measured on real shapes.
#pragma once

#include <filesystem>
#include <memory>

#include "core/model/checkpoint.hpp"
#include "core/model/dummy_checkpoint.hpp"
#include "core/plugin_host/format_plan.hpp"

namespace qengine {

struct DummyModel {
  Json config;                   // config.json
  Json quant_config;             // of a checkpoint in the format; null: not quantized
  std::filesystem::path folder;  // for the tokenizer; may be empty
  std::vector<Fill> fills;       // tensors whose codes are not free
};

// Throws Error: E304 when no plugin takes the format, E101 when its tensors cannot be made up.
std::shared_ptr<const Checkpoint> make_dummy(const DummyModel& model, const PluginHost& host, FormatOptions options);

}  // namespace qengine
