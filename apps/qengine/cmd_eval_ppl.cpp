// eval ppl: perplexity of texts.
#include <cmath>
#include <cstdio>

#include "apps/qengine/command.hpp"
#include "apps/qengine/eval_setup.hpp"
#include "apps/qengine/model_setup.hpp"
#include "core/eval/statistics.hpp"

namespace qengine {
namespace {

// Below this, a difference of a percent between two formats is noise.
constexpr std::int64_t kEnoughTokens = 10'000;

int run(const Invocation& in) {
  EngineOptions options = engine_options(in);
  options.need_tokenizer = eval_needs_tokenizer(in);
  const auto engine = load_engine(in, options);
  const EvalText text = eval_text(in, *engine);

  const GracefulStop stop;
  PerplexityStats all;
  std::vector<PerplexityStats> documents(text.method == "docs" ? text.documents.size() : 1);
  {
    Progress progress(in, "perplexity");
    std::size_t done = 0;
    for (const Window& w : text.windows) {
      if (GracefulStop::requested()) break;
      engine->all_logits(w.ids, [&](std::int64_t position, std::span<const float> row) {
        if (position + 1 < w.first || position + 1 >= std::ssize(w.ids)) return;
        const double nll = log_sum_exp(row) - row[w.ids[position + 1]];
        all.add(nll);
        documents[w.document].add(nll);
      });
      progress.at(static_cast<double>(++done) / static_cast<double>(text.windows.size()));
    }
  }
  if (!all.finite()) throw Error("E406", "logits became non-finite").hint("a model trained in bfloat16 may overflow in float16: use --dtype bfloat16 or float32");

  const bool interrupted = GracefulStop::requested();
  if (in.json()) {
    Json doc = json_document(in.command);
    doc["ppl"] = all.ppl().value;
    doc["ppl_error"] = all.ppl().error;
    doc["nll_mean"] = all.nll().value;
    doc["tokens"] = all.count();
    Json& list = doc["documents"] = Json::array();
    for (const PerplexityStats& d : documents)
      if (d.count() > 0) list.push_back({{"ppl", d.ppl().value}, {"tokens", d.count()}});
    add_text_record(doc, text);
    if (interrupted) doc["interrupted"] = true;
    print_json(doc);
  } else {
    char line[200];
    if (documents.size() > 1)
      for (std::size_t d = 0; d < documents.size(); ++d) {
        std::snprintf(line, sizeof line, "document %zu: PPL %.4f over %lld tokens\n", d, documents[d].ppl().value, static_cast<long long>(documents[d].count()));
        if (documents[d].count() > 0) print(line);
      }
    std::snprintf(line, sizeof line, "PPL %.4f ± %.4f over %lld tokens (method %s, context %lld, %s BOS)\n", all.ppl().value, all.ppl().error,
                  static_cast<long long>(all.count()), text.method.c_str(), static_cast<long long>(text.context), text.bos ? "with" : "no");
    print(line);
    if (all.count() < kEnoughTokens) note(in, "fewer than 10,000 tokens: differences of about 1 % are noise");
    note(in, "text sha256 " + text.sha256);
  }
  return interrupted ? GracefulStop::exit_code() : 0;
}

}  // namespace

extern const Command eval_ppl_command;
const Command eval_ppl_command = {
    .name = "eval ppl",
    .summary = "perplexity of texts",
    .usage = {"MODEL --text FILE", "MODEL --text FILE.jsonl --method chunks --context 512"},
    .groups = with_model_groups({&text_settings()}),
    .positional = "model",
    .run = run,
};

}  // namespace qengine
