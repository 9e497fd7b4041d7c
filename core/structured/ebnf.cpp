#include "core/structured/ebnf.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/structured/ebnf_parser.hpp"
#include "core/structured/regex.hpp"

namespace qengine::structured {
namespace {

class Emitter {
 public:
  Emitter(GrammarBuilder& b, const EbnfRules& rules) : b_(b), rules_(rules) {
    for (const auto& [name, rule] : rules) b_.name(ids_[name] = b_.rule(), rule.place);
  }

  RuleId emit_all() {
    for (const auto& [name, rule] : rules_) emit(name, rule);
    return ids_.find("root")->second;
  }

 private:
  using Rest = std::pair<EbnfSequence::const_iterator, EbnfSequence::const_iterator>;
  using Rests = std::vector<Rest>;

  // A rule that begins with itself, a ::= a x | y, is y x x ...
  void emit(const std::string& name, const EbnfRule& rule) {
    const StateId done = b_.state();
    b_.accept(done);
    Rests first, further;
    for (const EbnfSequence& s : rule.parts) {
      const bool itself = s[0].kind == EbnfNode::Kind::kName && s[0].text == name;
      (itself ? further : first).emplace_back(s.begin() + (itself ? 1 : 0), s.end());
    }
    alternatives(b_.start(ids_.find(name)->second), first, done);
    alternatives(done, further, done);
  }

  // What alternatives have in common at their beginning is read once: else each level of
  // a ::= "(" a ")" | "(" a "]" would double the readings of a text.
  void alternatives(StateId from, const Rests& all, StateId to) {
    std::vector<Rests> groups;  // by the first node
    std::map<int, std::size_t> group_of;
    for (const Rest& r : all) {
      const auto [it, fresh] = group_of.emplace(r.first == r.second ? -1 : r.first->id, groups.size());
      if (fresh) groups.emplace_back();
      groups[it->second].push_back(r);
    }
    for (Rests& group : groups) {
      StateId at = from;
      for (const auto same = [&] { return std::ranges::all_of(group, [&](const Rest& r) { return r.first != r.second && r.first->id == group[0].first->id; }); }; same();) {
        at = element(at, *group[0].first);
        for (Rest& r : group) ++r.first;
      }
      const bool ended = std::ranges::all_of(group, [](const Rest& r) { return r.first == r.second; });
      if (ended) b_.jump(at, to);
      else alternatives(at, group, to);
    }
  }

  StateId element(StateId from, const EbnfNode& n) {
    if (n.kind == EbnfNode::Kind::kText) return b_.text(from, n.text);
    const StateId to = b_.state();
    switch (n.kind) {
      case EbnfNode::Kind::kSet: b_.dfa(from, set(n.text), to); break;
      case EbnfNode::Kind::kName: b_.call(from, ids_.find(n.text)->second, to); break;
      case EbnfNode::Kind::kGroup: {
        Rests all;
        for (const EbnfSequence& s : n.parts) all.emplace_back(s.begin(), s.end());
        alternatives(from, all, to);
        break;
      }
      default: repeat(from, n, to);
    }
    return to;
  }

  void repeat(StateId from, const EbnfNode& n, StateId to) {
    const EbnfNode& what = n.parts[0][0];
    StateId at = b_.state();  // charged for: what is repeated may be empty
    b_.jump(from, at);
    for (int i = 0; i < std::max(n.least, n.most); ++i) {
      if (i >= n.least) b_.jump(at, to);
      const StateId next = b_.state();
      b_.jump(element(at, what), next);
      at = next;
    }
    if (n.most == kUnbounded) b_.jump(element(at, what), at);
    b_.jump(at, to);
  }

  const Dfa& set(const std::string& regex) {
    const auto [it, fresh] = sets_.try_emplace(regex);
    if (fresh) it->second = compile_regex(regex, RegexMode::kWhole, b_.budget());
    return it->second;
  }

  GrammarBuilder& b_;
  const EbnfRules& rules_;
  std::map<std::string, RuleId> ids_;
  std::map<std::string, Dfa> sets_;
};

}  // namespace

RuleId add_ebnf(GrammarBuilder& builder, std::string_view text) {
  const EbnfRules rules = parse_ebnf(text, builder.budget());
  return Emitter(builder, rules).emit_all();
}

}  // namespace qengine::structured
