// A configuration file: refused with E102, or values that are in range and stay what they are.
#include <cstdint>
#include <cstdlib>

#include "core/base/error.hpp"
#include "core/config/profile.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace qengine;
  try {
    const Profile p = parse_profile({reinterpret_cast<const char*>(data), size}, "fuzz", "/fuzz");
    for (const ProfileValue& v : p.values)
      for (const std::string& text : v.texts) {
        std::string expected;
        const auto again = normalize(*v.setting, text, &expected);
        if (!again || (*again != text && !is_path(v.setting->kind))) std::abort();
      }
    for (const ProfilePlugin& a : p.allow)
      if (a.id.empty() || a.sha256.size() != 64) std::abort();
    for (const ProfileOverride& o : p.overrides)
      if (o.match.empty() || o.plugin.empty()) std::abort();
  } catch (const Error& e) {
    if (e.code() != "E102") std::abort();
  }
  return 0;
}
