// What every command understands: help, the profile, where output and logs go; and the gates of eval.
#include "core/config/setting.hpp"

namespace qengine {

const SettingGroup& general_settings() {
  static const SettingGroup group{
      "General",
      {
          {.name = "config", .kind = Kind::kPath, .value = "FILE.toml", .help = "profile with defaults (qengine help config)"},
          {.name = "print-config", .kind = Kind::kBool, .fallback = "false",
           .help = "print every value, and where it comes from, as TOML"},
          {.name = "help", .letter = 'h', .kind = Kind::kBool, .fallback = "false", .help = "this text"},
          {.name = "version", .letter = 'V', .kind = Kind::kBool, .fallback = "false", .help = "version and commit",
           .hidden = true},
      }};
  return group;
}

const SettingGroup& result_settings() {
  static const SettingGroup group{
      "Output",
      {
          {.name = "output", .kind = Kind::kPath, .value = "FILE", .shown = "stdout", .help = "where the result goes"},
      }};
  return group;
}

const SettingGroup& output_settings() {
  static const SettingGroup group{
      "Output",
      {
          {.name = "json", .kind = Kind::kBool, .fallback = "false", .help = "one JSON document on stdout"},
          {.name = "quiet", .kind = Kind::kBool, .fallback = "false", .help = "no progress, no timings, only errors"},
          {.name = "progress", .kind = Kind::kBool, .fallback = "true", .help = "progress of long steps"},
          {.name = "log-level", .kind = Kind::kChoice, .value = "trace|debug|info|warn|error|off", .fallback = "warn",
           .key = "log.level", .reload = Reload::kLive, .help = "what the log on stderr tells; -v is debug"},
          {.name = "log-format", .kind = Kind::kChoice, .value = "text|json", .fallback = "text", .key = "log.format",
           .help = "how it tells it"},
      }};
  return group;
}

const SettingGroup& gate_settings() {
  static const SettingGroup group{
      "Gates",
      {
          {.name = "kl-mean-ok", .kind = Kind::kNumber, .value = "F", .shown = "by format", .key = "gates.kl_mean_ok",
           .reload = Reload::kLive, .help = "mean KL divergence that passes", .least = 0},
          {.name = "kl-mean-fail", .kind = Kind::kNumber, .value = "F", .shown = "by format", .key = "gates.kl_mean_fail",
           .reload = Reload::kLive, .help = "mean KL divergence above which exit is 6", .least = 0},
          {.name = "same-top-warn", .kind = Kind::kNumber, .value = "F", .shown = "by format", .key = "gates.same_top_warn",
           .reload = Reload::kLive, .help = "share of equal best tokens below which to warn", .least = 0, .most = 1},
          {.name = "structured-success-min", .kind = Kind::kNumber, .value = "F", .key = "gates.structured_success_min",
           .reload = Reload::kLive, .help = "share of structured extractions that must succeed", .least = 0, .most = 1},
          {.name = "tool-success-min", .kind = Kind::kNumber, .value = "F", .key = "gates.tool_success_min",
           .reload = Reload::kLive, .help = "share of tool calls that must succeed", .least = 0, .most = 1},
          {.name = "task-fail-delta", .kind = Kind::kNumber, .value = "F", .fallback = "0.02", .key = "gates.task_fail_delta",
           .reload = Reload::kLive, .help = "how much less than the reference may succeed", .least = 0, .most = 1},
          {.name = "error-rate-delta", .kind = Kind::kNumber, .value = "F", .fallback = "0.01", .key = "gates.error_rate_delta",
           .reload = Reload::kLive, .help = "canary: how many more requests may fail", .least = 0, .most = 1},
          {.name = "ttft-p95-ratio", .kind = Kind::kNumber, .value = "F", .fallback = "1.25", .key = "gates.ttft_p95_ratio",
           .reload = Reload::kLive, .help = "canary: P95 of the time to the first token, over the other's", .least = 0},
          {.name = "itl-p95-ratio", .kind = Kind::kNumber, .value = "F", .fallback = "1.25", .key = "gates.itl_p95_ratio",
           .reload = Reload::kLive, .help = "canary: P95 of the time between tokens, over the other's", .least = 0},
          {.name = "ppl-ratio-fail", .kind = Kind::kNumber, .value = "F", .fallback = "1.5", .key = "gates.ppl_ratio_fail",
           .reload = Reload::kLive, .help = "PPL ratio whose whole interval must not exceed this", .least = 0},
      }};
  return group;
}

}  // namespace qengine
