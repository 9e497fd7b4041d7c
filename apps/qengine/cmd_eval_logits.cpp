// eval logits: the float32 logits of every position, written where other programs can compare them.
#include <cstring>

#include "apps/qengine/command.hpp"
#include "apps/qengine/eval_setup.hpp"
#include "apps/qengine/model_setup.hpp"
#include "core/model/safetensors_writer.hpp"

namespace qengine {
namespace {

const SettingGroup& logits_settings() {
  static const SettingGroup group{"Prompt",
                                  {
                                      {.name = "prompt", .kind = Kind::kTexts, .value = "TEXT", .help = "a text"},
                                      {.name = "prompt-ids", .kind = Kind::kTexts, .value = "1,2,3", .help = "the same as token ids"},
                                      {.name = "output", .kind = Kind::kPath, .value = "FILE.safetensors", .help = "holds logits_0 [T, V], logits_1, ..., one a prompt"},
                                  }};
  return group;
}

int run(const Invocation& in) {
  if (!in.values.has("output")) throw Error("E101", "no --output").hint("--output FILE.safetensors says where the logits go");
  if (in.values.list("prompt").empty() && in.values.list("prompt-ids").empty()) throw Error("E101", "no prompt").hint("--prompt \"...\" or --prompt-ids 1,2,3");
  EngineOptions options = engine_options(in);
  options.need_tokenizer = !in.values.list("prompt").empty();
  const auto engine = load_engine(in, options);

  std::vector<std::vector<std::int32_t>> prompts;
  for (const std::string& text : in.values.list("prompt")) prompts.push_back(engine->tokenizer()->encode(text, true));
  for (const std::string& ids : in.values.list("prompt-ids")) prompts.push_back(parse_ids(ids));
  const std::int64_t vocab = engine->config().vocab_size;
  std::vector<SafetensorsEntry> entries;
  std::int64_t total = 0;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const std::int64_t n = std::ssize(prompts[i]);
    if (n == 0) throw Error("E101", "prompt " + std::to_string(i) + " is empty");
    check_ids(*engine, prompts[i], "prompt " + std::to_string(i));
    entries.push_back({"logits_" + std::to_string(i), "F32", {n, vocab}});
    total += n;
  }

  const GracefulStop stop;
  Progress progress(in, "logits");
  SafetensorsWriter out(in.values.text("output"), entries);
  std::int64_t done = 0;
  for (const auto& ids : prompts) {
    if (GracefulStop::requested()) return GracefulStop::exit_code();
    engine->all_logits(ids, [&](std::int64_t, std::span<const float> row) {
      if (std::ssize(row) != vocab) throw Error("E000", "a row of logits has " + std::to_string(row.size()) + " values, expected " + std::to_string(vocab));
      out.write(row);
      progress.at(static_cast<double>(++done) / static_cast<double>(total));
    });
  }
  out.finish();
  progress.done();
  if (in.json()) {
    Json doc = json_document(in.command);
    doc["output"] = in.values.text("output");
    doc["vocab_size"] = vocab;
    Json& list = doc["prompts"] = Json::array();
    for (std::size_t i = 0; i < prompts.size(); ++i) list.push_back({{"name", entries[i].name}, {"token_ids", prompts[i]}});
    print_json(doc);
  } else {
    note(in, std::to_string(total) + " positions x " + std::to_string(vocab) + " logits written to " + in.values.text("output"));
  }
  return 0;
}

}  // namespace

extern const Command eval_logits_command;
const Command eval_logits_command = {
    .name = "eval logits",
    .summary = "write the logits of every position to a file",
    .usage = {"MODEL --prompt-ids 1,2,3 --output logits.safetensors"},
    .groups = with_model_groups({&logits_settings()}),
    .positional = "model",
    .run = run,
};

}  // namespace qengine
