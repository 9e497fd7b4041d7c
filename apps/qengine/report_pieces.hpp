// The measurements of a report, one child process each: which there are, in what order, and which are done already.
//
// Every finished piece is a file in the report's folder, with a hash of all that it depends on. A report that is started again
// takes those whose hash still holds; so an interrupted one goes on where it was.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "apps/qengine/arm.hpp"
#include "apps/qengine/model_setup.hpp"

namespace qengine {

struct Piece {
  std::string kind;  // inspect speed ppl kl greedy tasks
  std::size_t arm = 0;
  int round = 0;
  std::vector<std::string> args;  // of the child
  std::string identity;           // hash of what it depends on
  std::string file;               // below pieces/
  bool must = false;              // an arm that fails here cannot be loaded: nothing goes on
};

class Pieces {
 public:
  // `folder` is made when it is not there. `fresh`: what is there is not used. Throws Error E108.
  Pieces(std::filesystem::path folder, std::vector<Piece> pieces, bool fresh);

  // Runs what is missing, in order, with progress and the time left. False when a signal ended it. A piece whose child fails is
  // kept as {"error": text}, except "inspect", which throws: then the arm's flags are wrong.
  bool run(const Invocation& in, const std::vector<Arm>& arms);

  // The document of a piece; null when it failed, with its error in `error`.
  Json result(const std::string& kind, std::size_t arm, int round = 0, std::string* error = nullptr) const;

 private:
  double left() const;  // s, from how long pieces of a kind took

  std::filesystem::path folder_;
  std::vector<Piece> pieces_;
  std::map<std::string, Json> done_;  // by file: {"identity","seconds","result"}
};

}  // namespace qengine
