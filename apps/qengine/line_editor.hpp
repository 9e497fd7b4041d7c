// LineEditor: one line at a time from a terminal, with editing and history where libedit was found at
// build time, plainly elsewhere.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

namespace qengine {

class LineEditor {
 public:
  // `history`: read at the start and written at the end, by its owner alone readable; empty: none.
  explicit LineEditor(std::filesystem::path history);
  ~LineEditor();

  // Without its newline; nullopt at the end of the input.
  std::optional<std::string> read(const std::string& prompt);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace qengine
