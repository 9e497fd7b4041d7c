#include "core/conformance/check.hpp"

#include <cstdarg>
#include <cstdio>

namespace qengine::conformance {
namespace {

std::string vtext(const char* format, va_list args) {
  va_list again;
  va_copy(again, args);
  const int n = std::vsnprintf(nullptr, 0, format, again);
  va_end(again);
  std::string out(n > 0 ? static_cast<std::size_t>(n) : 0, '\0');
  if (n > 0) std::vsnprintf(out.data(), out.size() + 1, format, args);
  return out;
}

}  // namespace

const std::vector<Check>& all_checks() {
  static const std::vector<Check> all = [] {
    std::vector<Check> out;
    for (const auto* group : {&binary_checks, &descriptor_checks, &planning_checks, &loading_checks, &numerics_checks, &graph_checks, &pdl_checks, &thread_checks, &kv_checks,
                              &speed_checks, &end_to_end_checks})
      out.insert(out.end(), group->begin(), group->end());
    return out;
  }();
  return all;
}

void fail(const char* format, ...) {
  va_list args;
  va_start(args, format);
  std::string out = vtext(format, args);
  va_end(args);
  throw Failed(out);
}

void not_applicable(const char* format, ...) {
  va_list args;
  va_start(args, format);
  std::string out = vtext(format, args);
  va_end(args);
  throw NotApplicable(out);
}

std::string text(const char* format, ...) {
  va_list args;
  va_start(args, format);
  std::string out = vtext(format, args);
  va_end(args);
  return out;
}

}  // namespace qengine::conformance
