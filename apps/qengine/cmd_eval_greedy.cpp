// eval greedy-hash: the same prompts, the likeliest token each time; equal to a reference, or where they part.
//
// Where two formats part says little by itself: with a gap near zero the reference was itself undecided
// there (a tie flip). So the gap is part of the answer, and equality between formats is reported, not judged.
// Judged is what must be equal: one model twice, the second time from its prefix cache (--repeat).
#include <algorithm>
#include <cstdio>
#include <optional>

#include "apps/qengine/command.hpp"
#include "apps/qengine/eval_setup.hpp"
#include "core/eval/greedy_prompts.hpp"
#include "apps/qengine/model_setup.hpp"
#include "core/plugin_host/sha256.hpp"

namespace qengine {

namespace {

constexpr float kTie = 0.05f;  // in ln p: a gap below it is a tie that rounding may flip

const SettingGroup& greedy_settings() {
  static const SettingGroup group{
      "Greedy",
      {
          {.name = "prompt", .kind = Kind::kTexts, .value = "TEXT", .shown = "12 built in", .help = "a prompt of your own"},
          {.name = "prompt-file", .kind = Kind::kPath, .value = "FILE", .help = "prompts, one a line"},
          {.name = "prompt-ids", .kind = Kind::kTexts, .value = "1,2,3", .help = "a prompt as token ids"},
          {.name = "max-tokens", .kind = Kind::kInt, .value = "N", .fallback = "128", .help = "tokens to generate; an end token does not stop them", .least = 1, .most = 1e6},
          {.name = "reference", .kind = Kind::kPath, .value = "MODEL", .help = "the model to compare with, loaded as it lies: flags of the format concern --model alone"},
          {.name = "repeat", .kind = Kind::kBool, .fallback = "false", .help = "run everything again on the same engine; exit 6 unless equal"},
      }};
  return group;
}

std::vector<std::string> texts(const Invocation& in) {
  std::vector<std::string> out = in.values.list("prompt");
  if (in.values.has("prompt-file")) {
    const std::string all = read_text(in.values.text("prompt-file"));
    for (std::size_t begin = 0; begin < all.size();) {
      const std::size_t end = std::min(all.find('\n', begin), all.size());
      std::string line = all.substr(begin, end - begin);
      if (!line.empty() && line.back() == '\r') line.pop_back();
      if (!line.empty()) out.push_back(std::move(line));
      begin = end + 1;
    }
  }
  if (out.empty() && in.values.list("prompt-ids").empty()) out.assign(kGreedyPrompts.begin(), kGreedyPrompts.end());
  return out;
}

struct Answer {
  std::vector<std::int32_t> ids;
  std::vector<float> gaps;  // ln p of the best token minus that of the next, a position
};

std::vector<Answer> answers(Engine& engine, const std::vector<std::vector<std::int32_t>>& prompts, std::int64_t max_tokens) {
  std::vector<Request> requests;
  for (const auto& prompt : prompts) {
    Request r;
    r.prompt = prompt;
    r.sampling.temperature = 0;
    r.sampling.max_tokens = max_tokens;
    r.sampling.ignore_eos = true;
    r.sampling.logprobs = 2;
    requests.push_back(std::move(r));
  }
  std::vector<Answer> out;
  for (const auto& events : engine.generate(std::move(requests), &GracefulStop::requested())) {
    Answer a;
    for (const Output& o : events) {
      if (o.finish == FinishReason::kError) throw Error("E406", o.error.empty() ? "a request failed" : o.error.substr(0, o.error.find('\n')));
      if (o.token < 0) continue;
      a.ids.push_back(o.token);
      a.gaps.push_back(o.top.size() > 1 ? o.top[0].logprob - o.top[1].logprob : 0);
    }
    out.push_back(std::move(a));
  }
  return out;
}

std::string hash_of(const std::vector<std::int32_t>& ids) {
  std::string bytes;
  for (const std::int32_t id : ids)
    for (int b = 0; b < 4; ++b) bytes += static_cast<char>(static_cast<std::uint32_t>(id) >> 8 * b);
  return sha256_of(bytes);
}

// nullopt when equal; the shorter one's length when it is the beginning of the other.
std::optional<std::size_t> difference(const std::vector<std::int32_t>& a, const std::vector<std::int32_t>& b) {
  const std::size_t at = static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
  return at == a.size() && a.size() == b.size() ? std::nullopt : std::optional(at);
}

int run(const Invocation& in) {
  EngineOptions options = engine_options(in);
  const std::vector<std::string> words = texts(in);
  options.need_tokenizer = !words.empty();
  const std::int64_t max_tokens = in.values.integer("max-tokens", 128);
  const GracefulStop stop;

  std::vector<std::vector<std::int32_t>> prompts;
  std::vector<Answer> ours, again, theirs;
  {
    const auto engine = load_engine(in, options);
    for (const std::string& text : words) prompts.push_back(engine->tokenizer()->encode(text, /*add_special=*/true));
    for (const std::string& ids : in.values.list("prompt-ids")) prompts.push_back(parse_ids(ids));
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      check_ids(*engine, prompts[i], "prompt " + std::to_string(i));
      if (prompts[i].empty()) throw Error("E101", "prompt " + std::to_string(i) + " is empty");
      if (std::ssize(prompts[i]) + max_tokens > engine->max_model_len())
        throw Error("E101", "prompt " + std::to_string(i) + " of " + std::to_string(prompts[i].size()) + " tokens and --max-tokens " + std::to_string(max_tokens) + " are longer than the context of " +
                                std::to_string(engine->max_model_len()))
            .hint("--max-tokens " + std::to_string(std::max<std::int64_t>(1, engine->max_model_len() - std::ssize(prompts[i]))));
    }
    ours = answers(*engine, prompts, max_tokens);
    if (in.values.flag("repeat") && !GracefulStop::requested()) again = answers(*engine, prompts, max_tokens);
  }
  if (in.values.has("reference") && !GracefulStop::requested()) {
    const auto base = load_engine(in, reference_options(in, options));
    for (std::size_t i = 0; i < prompts.size(); ++i) check_ids(*base, prompts[i], "prompt " + std::to_string(i));
    theirs = answers(*base, prompts, max_tokens);
  }
  if (GracefulStop::requested()) return GracefulStop::exit_code();

  int equal = 0, ties = 0, repeated = 0;
  Json list = Json::array();
  std::string out;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    Json p{{"sha256", hash_of(ours[i].ids)}, {"token_ids", ours[i].ids}, {"prompt_tokens", prompts[i].size()}};
    char line[160];
    std::snprintf(line, sizeof line, "%3zu  %s  ", i, p["sha256"].get<std::string>().substr(0, 16).c_str());
    out += line;
    if (!theirs.empty()) {
      const auto at = difference(ours[i].ids, theirs[i].ids);
      p["equal"] = !at;
      equal += !at;
      if (at) {
        p["first_difference"] = *at;
        p["reference_token_ids"] = theirs[i].ids;
        if (*at < theirs[i].gaps.size()) {
          const float gap = theirs[i].gaps[*at];
          p["gap"] = gap;
          p["tie"] = gap < kTie;
          ties += gap < kTie;
          std::snprintf(line, sizeof line, "differs at token %zu, where the reference's gap is %.4f%s", *at, static_cast<double>(gap), gap < kTie ? " (a tie)" : "");
          out += line;
        } else {
          out += "differs at token " + std::to_string(*at);
        }
      } else {
        out += "equal";
      }
    }
    if (!again.empty()) {
      const auto at = difference(ours[i].ids, again[i].ids);
      p["repeat_equal"] = !at;
      repeated += !at;
      if (at) {
        p["repeat_first_difference"] = *at;
        out += (theirs.empty() ? "" : "; ") + ("not repeated from token " + std::to_string(*at));
      }
    }
    out += "\n";
    list.push_back(std::move(p));
  }
  const bool failed = !again.empty() && repeated < std::ssize(prompts);
  if (in.json()) {
    Json doc = json_document(in.command);
    doc["prompts"] = std::move(list);
    if (!theirs.empty()) {
      doc["equal_count"] = equal;
      doc["ties"] = ties;
      doc["reference"] = in.values.text("reference");
    }
    if (!again.empty()) doc["repeat_equal_count"] = repeated;
    doc["max_tokens"] = max_tokens;
    print_json(doc);
  } else {
    if (!theirs.empty()) out += "\n" + std::to_string(equal) + " of " + std::to_string(prompts.size()) + " equal" + (ties ? ", " + std::to_string(ties) + " part at a tie" : "") + "\n";
    if (!again.empty()) out += std::to_string(repeated) + " of " + std::to_string(prompts.size()) + " repeated\nverdict: " + (failed ? "fail (one engine gave two answers)" : "pass") + "\n";
    print(out);
  }
  return failed ? 6 : 0;
}

}  // namespace

extern const Command eval_greedy_hash_command;
const Command eval_greedy_hash_command = {
    .name = "eval greedy-hash",
    .summary = "greedy answers to 12 prompts: equal to a reference, or where they part",
    .usage = {"MODEL --reference BF16_MODEL", "MODEL --quantization fp8_per_channel --reference MODEL --json", "MODEL --repeat"},
    .groups = with_model_groups({&greedy_settings()}),
    .positional = "model",
    .run = run,
};

}  // namespace qengine
