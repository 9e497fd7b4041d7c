// The conformance kit: runs the checks on one plugin file, each in a process of its own.
//
//   const Report r = run_kit(subject, {});      all checks
//   print(to_text(r)); to_json(r); to_junit(r)
//
// Forks: the calling process should have one thread.
#pragma once

#include <string>
#include <vector>

#include "core/conformance/subject.hpp"

namespace qengine::conformance {

enum class Verdict { kPassed, kFailed, kNotApplicable, kBlocked };

struct Outcome {
  std::string id, group, sentence;
  Verdict verdict = Verdict::kPassed;
  std::string why;  // failed, not applicable, blocked
  std::vector<std::string> notes;
  double seconds = 0;
};

struct Report {
  std::string library, name, version, id;  // as far as the manifest tells
  std::vector<Outcome> outcomes;
  double seconds = 0;
  int count(Verdict v) const;
  bool passed() const { return count(Verdict::kFailed) == 0 && count(Verdict::kBlocked) == 0; }
};

// `only`: ids ("QEP-401") or groups ("loading"); empty for all. Gates always run.
Report run_kit(const Subject& subject, const std::vector<std::string>& only);

std::string to_text(const Report& report, bool with_notes);
Json to_json(const Report& report);
std::string to_junit(const Report& report);

}  // namespace qengine::conformance
