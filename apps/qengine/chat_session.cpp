#include "apps/qengine/chat_session.hpp"

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "apps/qengine/line_editor.hpp"
#include "apps/qengine/model_setup.hpp"
#include "apps/qengine/settle.hpp"

namespace qengine {
namespace {

constexpr std::int64_t kRoom = 64;  // tokens that an answer can count on

std::filesystem::path history_file() {
  if (const char* state = std::getenv("XDG_STATE_HOME"); state && *state) return std::filesystem::path(state) / "qengine/chat_history";
  if (const char* home = std::getenv("HOME"); home && *home) return std::filesystem::path(home) / ".local/state/qengine/chat_history";
  return {};
}

struct Turn {
  std::string text;
  std::size_t tokens = 0;
  double seconds = 0;  // from the first token on
};

// Streams the answer to stdout. An interrupt ends it; what was said so far stays.
Turn answer(Engine& engine, std::vector<std::int32_t> prompt, SamplingParams sampling) {
  const GracefulStop stop;
  std::mutex mutex;
  std::condition_variable changed;
  std::string fresh, error;
  bool finished = false;
  Turn turn;
  std::chrono::steady_clock::time_point first, last;
  const std::int64_t left = engine.max_model_len() - std::ssize(prompt);
  Request r;
  r.prompt = std::move(prompt);
  r.sampling = std::move(sampling);
  r.sampling.max_tokens = r.sampling.max_tokens > 0 ? std::min(r.sampling.max_tokens, left) : left;
  r.on_output = [&](const Output& o) {
    const std::lock_guard lock(mutex);
    if (o.token >= 0) {
      last = std::chrono::steady_clock::now();
      if (turn.tokens++ == 0) first = last;
    }
    fresh += o.text;
    if (o.finish == FinishReason::kError) error = o.error;
    finished = o.finish != FinishReason::kNone;
    changed.notify_one();
  };
  Settle settle(engine, {engine.submit(std::move(r))}, mutex, changed, [&] { return !finished; });
  bool cancelled = false;
  for (std::unique_lock lock(mutex); !finished || !fresh.empty();) {
    if (fresh.empty()) changed.wait_for(lock, std::chrono::milliseconds(50));
    const std::string piece = std::exchange(fresh, {});
    const bool cancel = GracefulStop::requested() && !cancelled;
    lock.unlock();
    if (!piece.empty()) print(piece);
    if (cancel) settle.cancel(), cancelled = true;
    lock.lock();
    turn.text += piece;
  }
  if (!error.empty()) throw Error("E000", "the answer could not be finished: " + error);
  print(turn.text.ends_with('\n') ? "" : "\n");
  if (cancelled) GracefulStop::forget();
  turn.seconds = std::chrono::duration<double>(last - first).count();
  return turn;
}

}  // namespace

int chat_session(const Invocation& in, Engine& engine, const SamplingParams& sampling) {
  Json messages = Json::array();
  if (in.values.has("system")) messages.push_back({{"role", "system"}, {"content", in.values.text("system")}});
  const std::size_t fixed = messages.size();
  note(in, "/exit ends, /new begins anew, Ctrl-C stops an answer; a \\ at the end of a line continues it");
  LineEditor editor(history_file());
  const bool coloured = colour(STDERR_FILENO);
  for (;;) {
    auto line = editor.read("> ");
    while (line && line->ends_with('\\')) {
      line->back() = '\n';
      const auto more = editor.read(". ");
      if (!more) break;
      *line += *more;
    }
    if (!line || *line == "/exit" || *line == "/quit") return 0;
    if (line->find_first_not_of(" \t\n") == std::string::npos) continue;
    if (*line == "/new") {
      messages.erase(messages.begin() + static_cast<std::ptrdiff_t>(fixed), messages.end());
      continue;
    }
    if (line->starts_with('/')) {
      note(in, "unknown: " + line->substr(0, line->find(' ')) + "; known: /exit, /new");
      continue;
    }
    messages.push_back({{"role", "user"}, {"content", *line}});
    try {
      std::vector<std::int32_t> prompt = chat_prompt(in, *engine.tokenizer(), messages);
      bool forgot = false;
      while (std::ssize(prompt) + kRoom > engine.max_model_len() && messages.size() > fixed + 2) {  // the oldest turn goes
        messages.erase(messages.begin() + static_cast<std::ptrdiff_t>(fixed), messages.begin() + static_cast<std::ptrdiff_t>(fixed) + 2);
        prompt = chat_prompt(in, *engine.tokenizer(), messages);
        forgot = true;
      }
      if (forgot) note(in, "(the oldest turns no longer fit into " + std::to_string(engine.max_model_len()) + " tokens and are left out)");
      const Turn turn = answer(engine, std::move(prompt), sampling);
      messages.push_back({{"role", "assistant"}, {"content", turn.text}});
      if (turn.tokens > 1 && turn.seconds > 0) {
        char figures[64];
        std::snprintf(figures, sizeof figures, "%zu tokens, %.1f tok/s", turn.tokens, static_cast<double>(turn.tokens - 1) / turn.seconds);
        note(in, coloured ? std::string("\033[2m") + figures + "\033[0m" : figures);
      }
    } catch (const Error& e) {  // this turn is not possible; the session goes on
      messages.erase(messages.end() - 1);
      note(in, e.what());
    }
  }
}

}  // namespace qengine
