// A check of the conformance kit: a number, the sentence that must hold, the function that tries it.
//
// A check runs in a process of its own. It returns when the sentence holds, and throws Failed when it
// does not; a crash, an endless loop or an exception that crossed the boundary is a failure too.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace qengine::conformance {

struct Subject;

// What a check found wrong: one sentence with the value found and the value expected.
struct Failed : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// Why a check says nothing of this plugin: "no CUDA device here".
struct NotApplicable : std::runtime_error {
  using std::runtime_error::runtime_error;
};

using Notes = std::vector<std::string>;  // measured on the way, fit to publish

struct Check {
  const char* id;        // "QEP-401": numbers are never reused
  const char* group;     // "loading"
  const char* sentence;  // what must hold
  void (*run)(const Subject&, Notes&);
  bool gate = false;     // later checks rest on it: when it fails they are blocked, not failed
  int timeout_s = 240;  // a whole plugin takes seconds; a busy machine may take its time
  bool rests_on_all = false;  // says nothing new once something else failed
};

// All of them, in order. checks.cpp.
const std::vector<Check>& all_checks();

// One list a file: checks_GROUP.cpp.
extern const std::vector<Check> binary_checks, descriptor_checks, planning_checks, loading_checks, numerics_checks, graph_checks, pdl_checks, thread_checks, kv_checks,
    speed_checks, end_to_end_checks;

[[noreturn, gnu::format(printf, 1, 2)]] void fail(const char* format, ...);
[[noreturn, gnu::format(printf, 1, 2)]] void not_applicable(const char* format, ...);
[[gnu::format(printf, 1, 2)]] std::string text(const char* format, ...);

}  // namespace qengine::conformance
