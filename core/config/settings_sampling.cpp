// The fields of a request, as flags of `run` and as server defaults in [sampling].
#include "core/config/setting.hpp"

namespace qengine {

const SettingGroup& sampling_settings() {
  static const SettingGroup group{
      "Sampling",
      {
          {.name = "max-tokens", .kind = Kind::kInt, .value = "N", .shown = "512, or to the model's end of context",
           .key = "sampling.max_tokens", .reload = Reload::kLive, .help = "tokens to generate at most", .least = 1},
          {.name = "temperature", .kind = Kind::kNumber, .value = "F", .shown = "the model's, else 1",
           .key = "sampling.temperature", .reload = Reload::kLive, .help = "0 always takes the likeliest token",
           .least = 0, .most = 100},
          {.name = "top-p", .kind = Kind::kNumber, .value = "F", .shown = "the model's, else 1", .key = "sampling.top_p",
           .reload = Reload::kLive, .help = "likeliest tokens up to this probability in sum", .least = 0, .most = 1},
          {.name = "top-k", .kind = Kind::kInt, .value = "N", .shown = "the model's, else off", .key = "sampling.top_k",
           .reload = Reload::kLive, .help = "only the N likeliest tokens; 0: off", .least = -1},
          {.name = "min-p", .kind = Kind::kNumber, .value = "F", .shown = "the model's, else 0", .key = "sampling.min_p",
           .reload = Reload::kLive, .help = "least probability relative to the likeliest", .least = 0, .most = 1},
          {.name = "repetition-penalty", .kind = Kind::kNumber, .value = "F", .shown = "the model's, else 1",
           .key = "sampling.repetition_penalty", .reload = Reload::kLive, .help = "above 1: against tokens seen before",
           .least = 0.01, .most = 100},
          {.name = "presence-penalty", .kind = Kind::kNumber, .value = "F", .shown = "0", .key = "sampling.presence_penalty",
           .reload = Reload::kLive, .help = "against tokens generated before", .least = -2, .most = 2},
          {.name = "frequency-penalty", .kind = Kind::kNumber, .value = "F", .shown = "0",
           .key = "sampling.frequency_penalty", .reload = Reload::kLive, .help = "likewise, growing with each time",
           .least = -2, .most = 2},
          {.name = "stop", .kind = Kind::kTexts, .value = "TEXT", .key = "sampling.stop", .reload = Reload::kLive,
           .help = "end before this text"},
          {.name = "stop-token-ids", .kind = Kind::kList, .value = "ID", .key = "sampling.stop_token_ids",
           .reload = Reload::kLive, .help = "end at these token ids"},
          {.name = "min-tokens", .kind = Kind::kInt, .value = "N", .shown = "0", .key = "sampling.min_tokens",
           .reload = Reload::kLive, .help = "do not end before so many tokens", .least = 0},
          {.name = "ignore-eos", .kind = Kind::kBool, .fallback = "false", .key = "sampling.ignore_eos",
           .reload = Reload::kLive, .help = "go on when the model would end"},
          {.name = "logprobs", .kind = Kind::kInt, .value = "N", .help = "with --json: logprobs of the N likeliest tokens",
           .least = 0},
          {.name = "skip-special-tokens", .kind = Kind::kBool, .fallback = "true", .key = "sampling.skip_special_tokens",
           .reload = Reload::kLive, .help = "leave special tokens out of the text", .hidden = true},
          {.name = "include-stop-str-in-output", .kind = Kind::kBool, .fallback = "false",
           .key = "sampling.include_stop_str_in_output", .reload = Reload::kLive, .help = "keep the stop text",
           .hidden = true},
      }};
  return group;
}

}  // namespace qengine
