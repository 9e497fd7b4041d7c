#include "core/structured/formats.hpp"

#include <utility>

namespace qengine::structured {
namespace {

#define QE_DATE "[1-9][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
#define QE_TIME "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define QE_LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,20}[A-Za-z0-9])?"
#define QE_HOST QE_LABEL "(?:\\." QE_LABEL "){0,6}"
#define QE_BYTE "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define QE_URI_CHARS "[A-Za-z0-9._~!$&'()*+,;=:@-]"

constexpr std::pair<const char*, const char*> kFormats[] = {
    {"date", QE_DATE},
    {"time", QE_TIME},
    {"date-time", QE_DATE "T" QE_TIME},
    {"duration", "P(?:[0-9]{1,4}W|(?:[0-9]{1,4}Y(?:[0-9]{1,3}M(?:[0-9]{1,3}D)?)?|[0-9]{1,3}M(?:[0-9]{1,3}D)?|[0-9]{1,3}D)"
                 "(?:T(?:[0-9]{1,3}H(?:[0-9]{1,3}M(?:[0-9]{1,3}S)?)?|[0-9]{1,3}M(?:[0-9]{1,3}S)?|[0-9]{1,3}S))?"
                 "|T(?:[0-9]{1,3}H(?:[0-9]{1,3}M(?:[0-9]{1,3}S)?)?|[0-9]{1,3}M(?:[0-9]{1,3}S)?|[0-9]{1,3}S))"},
    {"email", "[A-Za-z0-9_+-]{1,32}(?:\\.[A-Za-z0-9_+-]{1,32}){0,3}@" QE_LABEL "(?:\\." QE_LABEL "){1,4}"},
    {"hostname", QE_HOST},
    {"ipv4", QE_BYTE "(?:\\." QE_BYTE "){3}"},
    {"ipv6", "(?:[0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}|::(?:[0-9a-fA-F]{1,4}(?::[0-9a-fA-F]{1,4}){0,5})?|(?:[0-9a-fA-F]{1,4}:){1,4}(?::[0-9a-fA-F]{1,4}){1,3}"},
    {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
    {"uri", "(?:https?|ftp|file|urn|ws|wss)://" QE_HOST "(?::[0-9]{1,5})?(?:/" QE_URI_CHARS "*)*(?:\\?(?:" QE_URI_CHARS "|/)*)?(?:#(?:" QE_URI_CHARS "|/)*)?"},
    {"json-pointer", "(?:/(?:[^~/]|~0|~1)*)*"},
};

#undef QE_DATE
#undef QE_TIME
#undef QE_LABEL
#undef QE_HOST
#undef QE_BYTE
#undef QE_URI_CHARS

}  // namespace

const char* format_pattern(std::string_view format) {
  for (const auto& [name, pattern] : kFormats)
    if (format == name) return pattern;
  return nullptr;
}

std::string format_names() {
  std::string out;
  for (const auto& [name, pattern] : kFormats) out += (out.empty() ? "" : ", ") + std::string(name);
  return out;
}

}  // namespace qengine::structured
