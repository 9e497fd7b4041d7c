// The matcher, on patterns as untrusted checkpoints bring them: first line the pattern, rest the name.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "core/plugin_host/match.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace qengine;
  static const Matcher matcher;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::size_t line = std::min(text.find('\n'), text.size());
  const std::string_view pattern = text.substr(0, line), name = text.substr(std::min(line + 1, text.size()));
  std::string problem;
  const bool hit = matcher.matches(pattern, name, &problem);
  if (hit && !problem.empty()) std::abort();
  if (hit != matcher.matches(pattern, name)) std::abort();
  return 0;
}
