// JsonRules: the rules of JSON itself, each made when it is first asked for and shared after that.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "core/structured/grammar.hpp"
#include "core/structured/numbers.hpp"

namespace qengine::structured {

class JsonRules {
 public:
  // `blanks`: white space may stand after { [ , : and before } ]: at most one line break, then up to 16
  // spaces or tabs, so that no model can go on with blanks for ever; or, with `pattern`, what that
  // regular expression matches in up to 16 characters that JSON takes for white space. Throws GrammarError
  // when the pattern is bad, matches other things than white space, or nothing of that length.
  JsonRules(GrammarBuilder& builder, bool blanks, const std::optional<std::string>& pattern = std::nullopt);

  RuleId value();      // anything
  RuleId object();     // any object
  RuleId array();      // any array
  RuleId string();     // any string, with its quotes
  RuleId character();  // one character inside a string
  RuleId number(const NumberBounds& bounds);
  RuleId literal(const std::string& text);

  StateId blank(StateId from);           // returns where it goes on
  void blank(StateId from, StateId to);

 private:
  RuleId blanks();
  void character(StateId from, StateId to);

  GrammarBuilder& b_;
  bool blanks_;
  std::optional<Dfa> pattern_;
  std::map<std::string, RuleId> rules_;
};

}  // namespace qengine::structured
