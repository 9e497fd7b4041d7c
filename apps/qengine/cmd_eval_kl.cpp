// eval kl: what a format costs in answers: its next-token distributions against those of a reference.
//
// Both models run in one process, in step (logit_compare.hpp).
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>

#include "apps/qengine/command.hpp"
#include "apps/qengine/eval_setup.hpp"
#include "apps/qengine/layer_compare.hpp"
#include "apps/qengine/logit_compare.hpp"
#include "apps/qengine/model_setup.hpp"
#include "core/base/log.hpp"
#include "core/engine/format_class.hpp"
#include "core/eval/statistics.hpp"
#include "core/eval/verdict.hpp"

namespace qengine {
namespace {

constexpr std::int64_t kLeastTokens = 100;
constexpr std::size_t kWorst = 10;

const SettingGroup& kl_settings() {
  static const SettingGroup group{"Reference",
                                  {{.name = "reference", .kind = Kind::kPath, .value = "MODEL", .help = "the model to compare with, loaded as it lies: flags of the format concern --model alone"},
                                   {.name = "layers", .kind = Kind::kBool, .fallback = "false", .help = "error of every layer, too: which one a format hurts"}}};
  return group;
}

struct WorstToken {
  double kld = 0;
  std::int64_t document = 0, position = 0;
  std::int32_t token = 0;
  std::vector<std::int32_t> before;
};

// One window through both engines.
void compare(Engine& base, Engine& model, const Window& w, KlStats& stats, std::vector<WorstToken>& worst) {
  compare_logits(base, model, w, [&](std::int64_t position, std::span<const float> expected, std::span<const float> row) {
    const std::int32_t token = w.ids[static_cast<std::size_t>(position + 1)];
    const double kld = stats.add(expected, row, token);
    if (!(kld > 0) || (worst.size() == kWorst && kld <= worst.back().kld)) return;
    const auto begin = w.ids.begin() + std::max<std::int64_t>(0, position - 11);
    worst.push_back({kld, w.document, w.position + position + 1, token, {begin, w.ids.begin() + position + 1}});
    std::sort(worst.begin(), worst.end(), [](const auto& a, const auto& b) { return a.kld > b.kld; });
    worst.resize(std::min(worst.size(), kWorst));
  });
}

Json json_of(const Estimate& e, const Distribution& d) {
  return {{"mean", e.value}, {"mean_error", e.error}, {"median", d.median}, {"max", d.max}, {"p999", d.p999}, {"p99", d.p99}, {"p95", d.p95}, {"p90", d.p90},
          {"p75", d.p75}, {"p25", d.p25}, {"p10", d.p10}, {"p05", d.p05}, {"p01", d.p01}, {"p001", d.p001}, {"min", d.min}};
}

// Text for a terminal: one line, no control characters.
std::string one_line(std::string text) {
  std::string out;
  for (const char c : text) {
    if (c == '\n') out += "\\n";
    else if (c == '\t') out += "\\t";
    else if (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f) out += c;
  }
  return out;
}

int run(const Invocation& in) {
  if (!in.values.has("reference")) throw Error("E101", "no --reference").hint("--reference MODEL: the unquantized model, or any other to compare with");
  EngineOptions options = engine_options(in);
  options.need_tokenizer = eval_needs_tokenizer(in);
  const auto model = load_engine(in, options);

  const auto base = load_engine(in, reference_options(in, options));
  if (base->config().vocab_size != model->config().vocab_size)
    throw Error("E101", "--reference has a vocabulary of " + std::to_string(base->config().vocab_size) + " tokens, --model one of " + std::to_string(model->config().vocab_size))
        .hint("compare two formats of one model");

  const EvalText text = eval_text(in, *model);
  const std::int64_t total = scored_tokens(text.windows);
  if (total < kLeastTokens)
    throw Error("E101", "only " + std::to_string(total) + " tokens would be scored; KL statistics need at least " + std::to_string(kLeastTokens)).hint("give a longer --text");
  for (const Window& w : text.windows)
    if (std::ssize(w.ids) > base->max_model_len())
      throw Error("E101", "a window of " + std::to_string(w.ids.size()) + " tokens is longer than the reference's context of " + std::to_string(base->max_model_len())).hint("--context " + std::to_string(base->max_model_len()));

  const GracefulStop stop;
  KlStats stats;
  std::vector<WorstToken> worst;
  {
    Progress progress(in, "comparing");
    std::size_t done = 0;
    for (const Window& w : text.windows) {
      if (GracefulStop::requested()) break;
      compare(*base, *model, w, stats, worst);
      progress.at(static_cast<double>(++done) / static_cast<double>(text.windows.size()));
    }
  }
  if (stats.count() == 0 && stats.non_finite() > 0)
    throw Error("E406", "no token has finite logits in both models").hint("a model trained in bfloat16 may overflow in float16: use --dtype bfloat16 or float32");

  const FormatClass format = format_class(*model);
  Gates gates = default_gates(format.weight_bits, format.parameters, format.kv_bits);
  gates.kl_mean_ok = in.values.number("kl-mean-ok").value_or(gates.kl_mean_ok);
  gates.kl_mean_fail = in.values.number("kl-mean-fail").value_or(gates.kl_mean_fail);
  gates.same_top_warn = in.values.number("same-top-warn").value_or(gates.same_top_warn);
  gates.ppl_ratio_fail = in.values.number("ppl-ratio-fail").value_or(gates.ppl_ratio_fail);
  const Verdict verdict = judge(stats, gates);

  std::optional<LayerErrors> layers;
  if (in.values.flag("layers") && !GracefulStop::requested()) layers = compare_layers(in, *base, *model, text.windows);

  const bool interrupted = GracefulStop::requested();
  const auto tokenizer = model->tokenizer();
  if (in.json()) {
    Json doc = json_document(in.command);
    doc["kld"] = json_of(stats.kld(), stats.kld_distribution());
    doc["delta_p"] = json_of(stats.delta_p(), stats.delta_p_distribution());
    doc["delta_p"]["rms"] = stats.delta_p_rms().value;
    doc["delta_p"]["rms_error"] = stats.delta_p_rms().error;
    doc["same_top_p"] = stats.same_top().value;
    doc["same_top_p_error"] = stats.same_top().error;
    const auto add = [&](const std::string& name, const Estimate& e) {
      doc[name] = e.value;
      doc[name + "_error"] = e.error;
    };
    add("ppl_q", stats.ppl_q());
    add("ppl_base", stats.ppl_base());
    doc["ppl_correlation"] = stats.correlation();
    add("ln_ppl_ratio", stats.ln_ppl_ratio());
    add("ppl_ratio", stats.ppl_ratio());
    add("ppl_difference", stats.ppl_difference());
    doc["tokens"] = stats.count();
    if (stats.non_finite() > 0) doc["non_finite_tokens"] = stats.non_finite();
    add_text_record(doc, text);
    doc["reference"] = in.values.text("reference");
    Json& list = doc["worst"] = Json::array();
    for (const WorstToken& w : worst) list.push_back({{"kld", w.kld}, {"document", w.document}, {"position", w.position}, {"token_id", w.token}});
    doc["verdict"] = to_string(verdict.grade);
    doc["reasons"] = reasons_json(verdict);
    if (layers) doc["layers"] = layer_errors_json(*layers);
    if (interrupted) doc["interrupted"] = true;
    print_json(doc);
  } else {
    std::string out = kl_text(stats);
    char line[128];
    std::snprintf(line, sizeof line, "\n%lld tokens scored, method %s, context %lld", static_cast<long long>(stats.count()), text.method.c_str(), static_cast<long long>(text.context));
    out += line;
    if (stats.non_finite() > 0) out += ", " + std::to_string(stats.non_finite()) + " left out as non-finite";
    out += "\nSymmetric percentiles of Δp mean noise; a heavier negative tail means damage.\n";
    if (tokenizer && !worst.empty()) {
      out += "\nTokens that differ most\n";
      for (const WorstToken& w : worst) {
        std::snprintf(line, sizeof line, "%10.5f  ", w.kld);
        out += line + one_line(tokenizer->decode(w.before, false)) + " >" + one_line(tokenizer->piece(w.token)) + "<\n";
      }
    }
    if (layers) out += "\n" + layer_errors_text(*layers);
    print(out + "\n" + verdict_line(verdict));
  }
  if (interrupted) return GracefulStop::exit_code();
  return verdict.grade == Verdict::kFail ? 6 : 0;
}

}  // namespace

extern const Command eval_kl_command;
const Command eval_kl_command = {
    .name = "eval kl",
    .summary = "KL divergence to a reference model; exit 6 when a gate fails",
    .usage = {"MODEL --reference BF16_MODEL --text FILE", "MODEL --quantization fp8_per_channel --reference MODEL --text FILE"},
    .groups = with_model_groups({&text_settings(), &kl_settings(), &gate_settings()}),
    .positional = "model",
    .run = run,
};

}  // namespace qengine
