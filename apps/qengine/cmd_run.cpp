// run: prompts in, text out. Streams to stdout; figures go to stderr, or with --json everything into
// one document.
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <optional>

#include "apps/qengine/chat_session.hpp"
#include "apps/qengine/command.hpp"
#include "apps/qengine/dummy_setup.hpp"
#include "apps/qengine/model_setup.hpp"
#include "apps/qengine/settle.hpp"

namespace qengine {
namespace {

using Clock = std::chrono::steady_clock;

// Where neither the user nor the model says how long an answer may be.
constexpr std::int64_t kDefaultMaxTokens = 512;

const SettingGroup& prompt_settings() {
  static const SettingGroup group{
      "Prompt",
      {
          {.name = "prompt", .kind = Kind::kTexts, .value = "TEXT", .help = "a prompt; \"-\" or a pipe: standard input"},
          {.name = "prompt-file", .kind = Kind::kTexts, .value = "FILE", .help = "a prompt from a file, without its last newline"},
          {.name = "prompt-ids", .kind = Kind::kTexts, .value = "1,2,3", .help = "a prompt as token ids"},
          {.name = "chat", .kind = Kind::kBool, .fallback = "false", .help = "the prompt is a message to the assistant"},
          {.name = "system", .value = "TEXT", .help = "with --chat: instructions before it"},
      }};
  return group;
}

struct Answer {
  std::vector<std::int32_t> prompt, tokens;
  std::string text;
  std::size_t printed = 0;
  Json logprobs = Json::array();
  FinishReason finish = FinishReason::kNone;
  std::string error;
  Clock::time_point submitted, first, last;
};

std::string without_last_newline(std::string text) {
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  return text;
}

// The texts to answer, in the order prompt, prompt-file, stdin.
std::vector<std::string> texts(const Invocation& in) {
  std::vector<std::string> out;
  bool read_stdin = false;
  const auto from_stdin = [&] {
    if (read_stdin) throw Error("E101", "standard input is asked for twice");
    read_stdin = true;
    out.push_back(without_last_newline(read_text("-")));
  };
  for (const std::string& text : in.values.list("prompt")) {
    if (text == "-") from_stdin();
    else out.push_back(text);
  }
  for (const std::string& file : in.values.list("prompt-file")) {
    if (file == "-") from_stdin();
    else out.push_back(without_last_newline(read_text(file)));
  }
  for (const std::string& word : in.words) {
    if (word != "-") throw Error("E101", "unexpected argument " + word).hint("a prompt is given as --prompt \"...\"");
    from_stdin();
  }
  if (out.empty() && in.values.list("prompt-ids").empty()) {
    if (isatty(STDIN_FILENO)) throw Error("E101", "no prompt").hint("--prompt \"...\", --prompt-file FILE, or a text piped in");
    from_stdin();
  }
  return out;
}

std::vector<std::vector<std::int32_t>> prompts(const Invocation& in, const Engine& engine, const std::vector<std::string>& texts) {
  std::vector<std::vector<std::int32_t>> out;
  const bool chat = in.values.flag("chat");
  for (const std::string& text : texts) {
    if (chat) {
      Json messages = Json::array();
      if (in.values.has("system")) messages.push_back({{"role", "system"}, {"content", in.values.text("system")}});
      messages.push_back({{"role", "user"}, {"content", text}});
      out.push_back(chat_prompt(in, *engine.tokenizer(), std::move(messages)));
    } else {
      out.push_back(engine.tokenizer()->encode(text, /*add_special=*/true));
    }
    if (out.back().empty()) throw Error("E101", "the prompt is empty").hint("--prompt \"...\", --prompt-file FILE, or a text piped in");
  }
  for (const std::string& ids : in.values.list("prompt-ids")) out.push_back(parse_ids(ids));
  return out;
}

Json logprob_json(const Output& o) {
  Json entry{{"token_id", o.token}, {"logprob", o.logprob}, {"top", Json::array()}};
  for (const TokenLogprob& t : o.top) entry["top"].push_back({{"token_id", t.id}, {"logprob", t.logprob}});
  return entry;
}

double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

struct Timings {
  double ttft = 0, prefill = 0, decode = 0;  // s, tok/s, tok/s; 0: not measured
  std::size_t prompt_tokens = 0, tokens = 0;
};

Timings timings(const std::vector<Answer>& answers) {
  Timings t;
  std::optional<Clock::time_point> begin, first, all_first, last;
  std::size_t after_first = 0;
  for (const Answer& a : answers) {
    t.prompt_tokens += a.prompt.size();
    t.tokens += a.tokens.size();
    if (a.tokens.empty()) continue;
    begin = std::min(begin.value_or(a.submitted), a.submitted);
    first = std::min(first.value_or(a.first), a.first);
    all_first = std::max(all_first.value_or(a.first), a.first);
    last = std::max(last.value_or(a.last), a.last);
    after_first += a.tokens.size() - 1;
  }
  if (!begin) return t;
  t.ttft = seconds(*first - *begin);
  if (const double s = seconds(*all_first - *begin); s > 0) t.prefill = static_cast<double>(t.prompt_tokens) / s;
  if (const double s = seconds(*last - *first); s > 0 && after_first > 0) t.decode = static_cast<double>(after_first) / s;
  return t;
}

int run(const Invocation& in) {
  const bool json = in.json();
  if (in.values.has("logprobs") && !json) throw Error("E101", "--logprobs needs --json").hint("logprobs are part of the JSON document");
  if (in.values.has("system") && !in.values.flag("chat")) throw Error("E101", "--system needs --chat").hint("add --chat, or write it into the prompt");
  const bool interactive = in.values.flag("chat") && !json && in.words.empty() && in.values.list("prompt").empty() && in.values.list("prompt-file").empty() &&
                           in.values.list("prompt-ids").empty() && isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
  const std::vector<std::string> asked = interactive ? std::vector<std::string>{} : texts(in);

  EngineOptions options = engine_options(in);
  options.need_tokenizer = true;  // an answer is text
  const auto engine = load_engine(in, options);
  if (in.values.given("quantization") && !json) note(in, engine->format().choice());  // what the name became
  const SamplingParams sampling = sampling_params(in, engine->checkpoint());

  if (interactive) return chat_session(in, *engine, sampling);

  std::vector<Answer> answers;
  for (auto& ids : prompts(in, *engine, asked)) answers.push_back({.prompt = std::move(ids)});

  const GracefulStop stop;
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t running = answers.size();
  std::vector<Request> requests;
  for (Answer& a : answers) {
    Request r;
    r.prompt = a.prompt;
    r.sampling = sampling;
    if (r.sampling.max_tokens == 0)
      r.sampling.max_tokens = std::clamp<std::int64_t>(engine->max_model_len() - std::ssize(a.prompt), 1, kDefaultMaxTokens);
    a.submitted = Clock::now();
    r.on_output = [&, answer = &a](const Output& o) {
      const std::lock_guard lock(mutex);
      if (o.token >= 0) {
        answer->last = Clock::now();
        if (answer->tokens.empty()) answer->first = answer->last;
        answer->tokens.push_back(o.token);
        if (in.values.has("logprobs")) answer->logprobs.push_back(logprob_json(o));
      }
      answer->text += o.text;
      if (o.finish != FinishReason::kNone) {
        answer->finish = o.finish;
        answer->error = o.error;
        --running;
      }
      changed.notify_one();
    };
    requests.push_back(std::move(r));
  }
  Settle settle(*engine, engine->submit(std::move(requests)), mutex, changed, [&] { return running > 0; });  // all, or none and an error

  // Text streams in the order of the prompts; a later answer waits until those before it are whole.
  const bool headings = answers.size() > 1 && !json;
  std::size_t current = 0;
  bool cancelled = false, begun = false;
  for (std::unique_lock lock(mutex); current < answers.size();) {
    if (GracefulStop::requested() && !cancelled) {
      cancelled = true;
      lock.unlock();
      settle.cancel();
      lock.lock();
    }
    Answer& a = answers[current];
    std::string fresh;
    if (headings && !begun && (a.finish != FinishReason::kNone || !a.text.empty())) {
      begun = true;
      fresh = (current ? "\n==> prompt " : "==> prompt ") + std::to_string(current + 1) + " <==\n";
    }
    if (!json) fresh += a.text.substr(a.printed);
    a.printed = a.text.size();
    const bool finished = a.finish != FinishReason::kNone;
    if (finished && !json && !a.text.ends_with('\n')) fresh += '\n';
    if (!fresh.empty()) {
      lock.unlock();
      print(fresh);
      lock.lock();
    }
    if (finished && a.printed == a.text.size()) {
      ++current;
      begun = false;
    } else if (a.finish == FinishReason::kNone && a.printed == a.text.size()) {
      changed.wait_for(lock, std::chrono::milliseconds(100));
    }
  }

  for (const Answer& a : answers)
    if (a.finish == FinishReason::kError) {
      const bool coded = a.error.size() > 4 && a.error[0] == 'E';
      throw Error(coded ? a.error.substr(0, 4) : "E000", coded ? a.error.substr(5) : "generation failed: " + a.error);
    }

  const Timings t = timings(answers);
  if (json) {
    Json doc = json_document(in.command);
    Json& outputs = doc["outputs"] = Json::array();
    for (const Answer& a : answers) {
      Json o{{"prompt_token_ids", a.prompt}, {"token_ids", a.tokens}, {"text", a.text}, {"finish_reason", to_string(a.finish)}};
      if (in.values.has("logprobs")) o["logprobs"] = a.logprobs;
      outputs.push_back(std::move(o));
    }
    Json& times = doc["timings"] = {{"load_s", engine->load_seconds()}};
    if (t.tokens > 0) times["ttft_s"] = t.ttft;
    if (t.prefill > 0) times["prefill_tok_s"] = t.prefill;
    if (t.decode > 0) times["decode_tok_s"] = t.decode;
    const MemoryReport m = engine->memory();
    doc["memory"] = {{"weights_bytes", m.weights_bytes}, {"kv_bytes", m.kv_bytes}, {"peak_rss_bytes", m.peak_rss_bytes}};
    doc["layers"] = layers_json(engine->format());
    if (cancelled) doc["interrupted"] = true;
    print_json(doc);
  } else {
    char line[256];
    int n = std::snprintf(line, sizeof line, "%zu prompt tokens, first token after %.2f s", t.prompt_tokens, t.ttft);
    if (t.prefill > 0) n += std::snprintf(line + n, sizeof line - n, " (%.0f tok/s)", t.prefill);
    n += std::snprintf(line + n, sizeof line - n, "; %zu tokens", t.tokens);
    if (t.decode > 0) n += std::snprintf(line + n, sizeof line - n, " at %.1f tok/s", t.decode);
    std::snprintf(line + n, sizeof line - n, "; loaded in %.2f s", engine->load_seconds());
    note(in, colour(STDERR_FILENO) ? std::string("\033[2m") + line + "\033[0m" : line);
  }
  return cancelled ? GracefulStop::exit_code() : 0;
}

}  // namespace

extern const Command run_command;
const Command run_command = {
    .name = "run",
    .summary = "answer prompts (the default command)",
    .usage = {"MODEL --prompt \"Why is the sky blue?\"", "MODEL --chat --system \"Be brief.\" --prompt \"Hi\"", "MODEL --chat", "MODEL < prompt.txt"},
    .groups = with_model_groups({&prompt_settings(), &sampling_settings(), &chat_settings(), &dummy_settings()}),
    .positional = "model",
    .max_words = 1,
    .run = run,
};

}  // namespace qengine
