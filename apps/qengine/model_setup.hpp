// From settings to what the engine takes: shared by every command that opens a model.
#pragma once

#include <memory>

#include "apps/qengine/command.hpp"
#include "core/engine/engine.hpp"

namespace qengine {

// The groups of flags of a command that loads a model.
std::vector<const SettingGroup*> with_model_groups(std::vector<const SettingGroup*> own);

// Throw Error E101 for settings that do not go together.
std::filesystem::path model_path(const Invocation& in);  // E101 when none was given
PluginHostOptions plugin_options(const Invocation& in);
FormatOptions format_options(const Invocation& in);
EngineOptions engine_options(const Invocation& in);

// With a progress bar and the lines of a start in the log.
std::unique_ptr<Engine> load_engine(const Invocation& in, EngineOptions options);

// A plan without a load: what inspect, plugin explain and export work from.
struct OpenModel {
  std::unique_ptr<PluginHost> host;
  std::shared_ptr<const Checkpoint> checkpoint;
  ModelConfig config;
  std::unique_ptr<FormatPlan> plan;
};
OpenModel open_model(const Invocation& in);

// Sampling of a request that says nothing: [sampling] and flags > generation_config.json > neutral.
// max_tokens 0: not said.
SamplingParams sampling_params(const Invocation& in, const Checkpoint& checkpoint);

// "1,2,3" -> ids. Throws Error E101.
std::vector<std::int32_t> parse_ids(const std::string& text);

// The whole of a text file, or of stdin for "-". Throws Error E101. `most`: bytes.
std::string read_text(const std::string& file, std::uint64_t most = 1ull << 30);

// Turns {messages} into prompt ids by the model's template (or --chat-template). Throws Error E504.
std::vector<std::int32_t> chat_prompt(const Invocation& in, const Tokenizer& tokenizer, Json messages);

// [{"name","plugin","scheme","kernel","tier","bytes","reason"}]
Json layers_json(const FormatPlan& plan);

// "1.5 GiB"
std::string size_text(double bytes);

}  // namespace qengine
