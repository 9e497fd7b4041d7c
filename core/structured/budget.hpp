// What a grammar may cost to compile, and how it is refused.
//
// A schema comes from outside: nested repeats and alternatives can ask for any number of states. Every
// construction charges what it allocates and looks at the clock, so that the worst a schema can do is
// to be refused (serving.md 3.4: 2 s, 64 MiB). The time is the thread's own processor time, so that a
// busy machine refuses nothing that an idle one would compile.
#pragma once

#include <time.h>

#include <chrono>
#include <cstddef>
#include <exception>
#include <string>
#include <utility>

namespace qengine::structured {

// The schema, pattern or grammar cannot be enforced. `place` is a JSON pointer into the schema
// ("/properties/age/pattern"), "" for the whole; `what()` is one line without it.
class GrammarError : public std::exception {
 public:
  GrammarError(std::string place, std::string message) : place_(std::move(place)), message_(std::move(message)) {}
  const std::string& place() const { return place_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string place_, message_;
};

// One compilation's allowance, on one thread.
class Budget {
 public:
  explicit Budget(std::size_t bytes = std::size_t{64} << 20, std::chrono::milliseconds time = std::chrono::milliseconds(2000))
      : left_(bytes), total_(bytes), time_(time), until_(now() + time) {}

  // Throws GrammarError at `place` when the bytes or the time are used up. Bytes are not given back.
  void charge(std::size_t bytes) {
    if (bytes > left_) throw GrammarError(place, "is too large: it needs more than " + std::to_string(total_ >> 20) + " MiB of automaton");
    left_ -= bytes;
    if (++calls_ % 256 == 0 && now() > until_)
      throw GrammarError(place, "is too complex: it takes more than " + std::to_string(time_.count()) + " ms to compile");
  }

  std::string place;  // what is being compiled

 private:
  static std::chrono::nanoseconds now() {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec);
  }

  std::size_t left_, total_;
  std::chrono::milliseconds time_;
  std::chrono::nanoseconds until_;  // of this thread's processor time
  unsigned calls_ = 0;
};

}  // namespace qengine::structured
