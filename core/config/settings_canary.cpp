// A second backend that gets a share of the traffic, and what sends it home.
#include "core/config/setting.hpp"

namespace qengine {

const SettingGroup& canary_settings() {
  static const SettingGroup group{
      "Canary",
      {
          {.name = "canary-backend", .value = "NAME", .shown = "none", .key = "canary.backend", .reload = Reload::kLive,
           .help = "the [[backend]] that gets a share of the requests"},
          {.name = "canary-percent", .kind = Kind::kNumber, .value = "F", .fallback = "5", .key = "canary.percent",
           .reload = Reload::kLive, .help = "its share", .least = 0, .most = 100},
          {.name = "canary-steps", .kind = Kind::kList, .value = "F,F", .key = "canary.steps", .reload = Reload::kLive,
           .help = "shares instead, one after the other while nothing is wrong"},
          {.name = "canary-step-hold-s", .kind = Kind::kNumber, .value = "SECONDS", .fallback = "600", .key = "canary.step_hold_s",
           .reload = Reload::kLive, .help = "how long a step lasts at least", .least = 0},
          {.name = "canary-min-requests", .kind = Kind::kInt, .value = "N", .fallback = "200", .key = "canary.min_requests",
           .reload = Reload::kLive, .help = "requests of each side before they are compared, and a verdict is given", .least = 1},
          {.name = "canary-shadow-fraction", .kind = Kind::kNumber, .value = "F", .fallback = "0", .key = "canary.shadow_fraction",
           .reload = Reload::kLive, .help = "share of the prompts that both score, nobody seeing it", .least = 0, .most = 1},
          {.name = "canary-sticky", .value = "WHAT", .fallback = "none", .key = "canary.sticky", .reload = Reload::kLive,
           .help = "what keeps a client on its side: header:NAME, user, api_key or none"},
          {.name = "canary-allow-pin", .kind = Kind::kBool, .fallback = "false", .key = "canary.allow_pin", .reload = Reload::kLive,
           .help = "a client may choose with the header x-qengine-arm: stable or canary"},
          {.name = "canary-state-file", .kind = Kind::kPath, .value = "FILE", .shown = "under $XDG_STATE_HOME/qengine", .key = "canary.state_file",
           .help = "what survives a restart"},
          {.name = "canary-error-rate-delta", .kind = Kind::kNumber, .value = "F", .fallback = "0.01", .key = "canary.abort_if.error_rate_delta",
           .reload = Reload::kLive, .help = "how many more requests may fail", .least = 0, .most = 1},
          {.name = "canary-ttft-p95-ratio", .kind = Kind::kNumber, .value = "F", .fallback = "1.25", .key = "canary.abort_if.ttft_p95_ratio",
           .reload = Reload::kLive, .help = "P95 of the time to the first token, over the other's", .least = 0},
          {.name = "canary-itl-p95-ratio", .kind = Kind::kNumber, .value = "F", .fallback = "1.25", .key = "canary.abort_if.itl_p95_ratio",
           .reload = Reload::kLive, .help = "P95 of a request's mean time between tokens, over the other's", .least = 0},
          {.name = "canary-structured-fail-delta", .kind = Kind::kNumber, .value = "F", .fallback = "0.02",
           .key = "canary.abort_if.structured_fail_delta", .reload = Reload::kLive, .help = "how many more structured outputs may stay incomplete", .least = 0, .most = 1},
          {.name = "canary-tool-fail-delta", .kind = Kind::kNumber, .value = "F", .fallback = "0.02", .key = "canary.abort_if.tool_fail_delta",
           .reload = Reload::kLive, .help = "how many more tool calls may not parse", .least = 0, .most = 1},
          {.name = "canary-feedback-negative-delta", .kind = Kind::kNumber, .value = "F", .fallback = "0.05",
           .key = "canary.abort_if.feedback_negative_delta", .reload = Reload::kLive, .help = "how much worse the feedback may be", .least = 0, .most = 1},
          {.name = "canary-shadow-kl-mean", .kind = Kind::kNumber, .value = "F", .fallback = "0.05", .key = "canary.abort_if.shadow_kl_mean",
           .reload = Reload::kLive, .help = "mean KL divergence along the prompts that both score", .least = 0},
      }};
  return group;
}

}  // namespace qengine
