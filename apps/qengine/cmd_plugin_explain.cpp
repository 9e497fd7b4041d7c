// plugin explain: why a checkpoint goes to the plugin it goes to.
#include "apps/qengine/command.hpp"
#include "apps/qengine/model_setup.hpp"
#include "apps/qengine/plugin_text.hpp"

namespace qengine {
namespace {

int run(const Invocation& in) {
  const OpenModel m = open_model(in);
  if (in.json()) {
    Json doc = json_document(in.command);
    doc["choice"] = m.plan->choice();
    Json& scores = doc["scores"] = Json::array();
    for (const PluginScore& s : m.plan->scores()) scores.push_back({{"plugin", s.plugin->name}, {"score", s.score}, {"why", s.why}});
    doc["layers"] = layers_json(*m.plan);
    print_json(doc);
    return 0;
  }
  std::vector<std::vector<std::string>> rows{{"plugin", "score", "why"}};
  for (const PluginScore& s : m.plan->scores()) rows.push_back({s.plugin->name, std::to_string(s.score), s.why});
  print(table(rows) + "\n" + m.plan->choice() + "\n\n" + format_table(m.plan->report(), /*expand=*/true));
  return 0;
}

}  // namespace

extern const Command plugin_explain_command;
const Command plugin_explain_command = {
    .name = "plugin explain",
    .summary = "what each plugin says about a model, and who takes each layer",
    .usage = {"MODEL"},
    .groups = with_model_groups({}),
    .positional = "model",
    .run = run,
};

}  // namespace qengine
