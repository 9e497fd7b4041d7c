#include "apps/qengine/line_editor.hpp"

#include <iostream>

#ifdef QE_HAVE_LIBEDIT
#include <histedit.h>
#include <sys/stat.h>

#include <clocale>
#include <cstdio>
#endif

namespace qengine {

#ifdef QE_HAVE_LIBEDIT

struct LineEditor::State {
  std::filesystem::path file;
  std::string prompt;
  EditLine* edit = nullptr;
  History* lines = nullptr;
  HistEvent event{};
};

namespace {

char* prompt_of(EditLine* edit) {
  std::string* text = nullptr;
  el_get(edit, EL_CLIENTDATA, &text);
  return text->data();
}

}  // namespace

LineEditor::LineEditor(std::filesystem::path history) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.file = std::move(history);
  std::setlocale(LC_CTYPE, "");  // for characters of more than one byte
  s.lines = history_init();
  ::history(s.lines, &s.event, H_SETSIZE, 1000);
  ::history(s.lines, &s.event, H_SETUNIQUE, 1);
  if (!s.file.empty()) ::history(s.lines, &s.event, H_LOAD, s.file.c_str());
  s.edit = el_init("qengine", stdin, stdout, stderr);
  el_set(s.edit, EL_CLIENTDATA, &s.prompt);
  el_set(s.edit, EL_PROMPT, prompt_of);
  el_set(s.edit, EL_EDITOR, "emacs");
  el_set(s.edit, EL_HIST, ::history, s.lines);
  el_set(s.edit, EL_SIGNAL, 1);  // a signal finds the terminal as it was
}

LineEditor::~LineEditor() {
  State& s = *state_;
  if (!s.file.empty()) {
    std::error_code ignored;
    std::filesystem::create_directories(s.file.parent_path(), ignored);
    const mode_t before = umask(077);
    ::history(s.lines, &s.event, H_SAVE, s.file.c_str());
    umask(before);
  }
  el_end(s.edit);
  history_end(s.lines);
}

std::optional<std::string> LineEditor::read(const std::string& prompt) {
  State& s = *state_;
  s.prompt = prompt;
  int n = 0;
  const char* line = el_gets(s.edit, &n);
  if (!line || n <= 0) return std::nullopt;
  std::string text(line, static_cast<std::size_t>(n));
  while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
  if (!text.empty()) ::history(s.lines, &s.event, H_ENTER, line);
  return text;
}

#else

struct LineEditor::State {};

LineEditor::LineEditor(std::filesystem::path) {}
LineEditor::~LineEditor() = default;

std::optional<std::string> LineEditor::read(const std::string& prompt) {
  std::cout << prompt << std::flush;
  std::string line;
  if (!std::getline(std::cin, line)) return std::nullopt;
  return line;
}

#endif

}  // namespace qengine
