// Matcher: the one way in which rules name modules, whatever dialect a rule came from.
//
//   exact   "lm_head", "model.layers.0.self_attn.q_proj"
//   glob    "*.mlp.*", "model.layers.1?.*", "model.layers.[0-3].*": `*` also crosses dots
//   re:     "re:.*\.layers\.0\..*down_proj": PCRE2, anchored at the start as Python's re.match is
//
// Names and patterns are compared with and without the prefixes `model.` and `language_model.`, since
// checkpoints and the rules in them were written by different releases of the same model classes. A rule
// that names qkv_proj or gate_up_proj, as engines call what they compute as one, means each of its parts.
// Patterns come with untrusted files: length, steps and memory of a match are bounded.
//
// Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace qengine {

// `name` without leading `model.` and `language_model.`, in any order.
std::string_view strip_model_prefix(std::string_view name);

class Matcher {
 public:
  Matcher();
  ~Matcher();

  // A bad pattern, or one that takes too many steps, matches nothing; *problem (may be null) then
  // says why: `missing terminating ] for character class at position 5`.
  bool matches(std::string_view pattern, std::string_view name, std::string* problem = nullptr) const;

 private:
  bool matches_one(std::string_view pattern, std::string_view name, std::string* problem) const;

  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace qengine
