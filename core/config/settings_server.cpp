// The HTTP server.
#include "core/config/setting.hpp"

namespace qengine {

const SettingGroup& chat_settings() {
  static const SettingGroup group{
      "Chat template",
      {
          {.name = "chat-template", .kind = Kind::kPath, .value = "FILE", .shown = "the model's",
           .key = "server.chat_template", .help = "Jinja template of the chat"},
          {.name = "chat-template-content-format", .kind = Kind::kChoice, .value = "auto|string|openai", .fallback = "auto",
           .key = "server.chat_template_content_format", .help = "how the template wants message content"},
          {.name = "default-chat-template-kwargs", .value = "JSON", .key = "server.default_chat_template_kwargs",
           .help = "variables every rendering gets"},
      }};
  return group;
}

const SettingGroup& server_settings() {
  static const SettingGroup group{
      "Server",
      {
          {.name = "host", .value = "ADDRESS", .fallback = "127.0.0.1", .key = "server.host", .help = "address to listen on"},
          {.name = "port", .kind = Kind::kInt, .value = "N", .fallback = "8000", .key = "server.port",
           .help = "0 picks a free one and prints it", .least = 0, .most = 65535},
          {.name = "uds", .kind = Kind::kPath, .value = "FILE", .key = "server.uds",
           .help = "listen on a Unix socket instead"},
          {.name = "root-path", .value = "PATH", .key = "server.root_path", .help = "prefix a proxy has removed"},
          {.name = "api-key", .kind = Kind::kList, .value = "KEY", .key = "server.api_key", .reload = Reload::kLive,
           .help = "key or keys that clients must send", .secret = true},
          {.name = "api-key-file", .kind = Kind::kPath, .value = "FILE", .key = "server.api_key_file",
           .reload = Reload::kLive, .help = "the same, one a line"},
          {.name = "allowed-origins", .kind = Kind::kList, .value = "ORIGIN", .shown = "none",
           .key = "server.allowed_origins", .help = "web pages that may call (CORS)"},
          {.name = "trust-request-chat-template", .kind = Kind::kBool, .fallback = "false",
           .key = "server.trust_request_chat_template", .help = "let a request bring its own template"},
          {.name = "tool-call-parser", .value = "NAME", .fallback = "auto", .key = "server.tool_call_parser",
           .help = "how tool calls are read from the text"},
          {.name = "reasoning-parser", .value = "NAME", .fallback = "auto", .key = "server.reasoning_parser",
           .help = "how reasoning is kept apart"},
          {.name = "enable-auto-tool-choice", .kind = Kind::kBool, .fallback = "true",
           .key = "server.enable_auto_tool_choice", .help = "the model may decide to call tools"},
          {.name = "enable-request-id-headers", .kind = Kind::kBool, .fallback = "true",
           .key = "server.enable_request_id_headers", .help = "answer with X-Request-Id"},
          {.name = "enable-tokenizer-info-endpoint", .kind = Kind::kBool, .fallback = "true",
           .key = "server.enable_tokenizer_info_endpoint", .help = "serve /tokenizer_info"},
          {.name = "max-num-queued-reqs", .kind = Kind::kInt, .value = "N", .shown = "the larger of 256 and 4 x max-num-seqs",
           .key = "server.max_num_queued_reqs", .reload = Reload::kLive, .help = "requests running and waiting", .least = 1},
          {.name = "max-num-queued-tokens", .kind = Kind::kInt, .value = "N", .key = "server.max_num_queued_tokens",
           .reload = Reload::kLive, .help = "prompt tokens waiting", .least = 1},
          {.name = "overload-status", .kind = Kind::kChoice, .value = "429|503", .fallback = "429",
           .key = "server.overload_status", .reload = Reload::kLive, .help = "answer when the queue is full"},
          {.name = "max-body-bytes", .kind = Kind::kBytes, .value = "BYTES", .fallback = "32MiB",
           .key = "server.max_body_bytes", .help = "longest request body", .least = 1024},
          {.name = "request-timeout", .kind = Kind::kNumber, .value = "SECONDS", .fallback = "0",
           .key = "server.request_timeout", .reload = Reload::kLive, .help = "0: none", .least = 0},
          {.name = "shutdown-timeout", .kind = Kind::kNumber, .value = "SECONDS", .fallback = "30",
           .key = "server.shutdown_timeout", .reload = Reload::kLive, .help = "for running requests, after SIGTERM",
           .least = 0},
          {.name = "active-backend", .value = "NAME", .shown = "the first [[backend]]", .key = "server.active_backend",
           .reload = Reload::kSwap, .help = "the [[backend]] of the profile that answers"},
          {.name = "swap-mode", .kind = Kind::kChoice, .value = "auto|beside|drain_first", .fallback = "auto",
           .key = "server.swap_mode", .reload = Reload::kLive,
           .help = "a reload loads beside what runs and refuses where memory is short (beside), empties the server before it loads (drain_first), or does the first where it fits"},
          {.name = "swap-drain-timeout", .kind = Kind::kNumber, .value = "SECONDS", .fallback = "300",
           .key = "server.swap_drain_timeout", .reload = Reload::kLive,
           .help = "drain_first: how long running requests may take before the swap is given up", .least = 0},
          {.name = "admin-key-file", .kind = Kind::kPath, .value = "FILE", .key = "server.admin_key_file",
           .reload = Reload::kLive, .help = "keys of the /admin routes, one a line, instead of the clients' keys"},
          {.name = "admin-uds", .kind = Kind::kPath, .value = "FILE", .key = "server.admin_uds",
           .help = "a Unix socket for the /admin routes, which then answer elsewhere only to keys of --admin-key-file"},
          {.name = "log-prompts", .kind = Kind::kBool, .fallback = "false", .key = "server.log_prompts",
           .reload = Reload::kLive, .help = "write prompts to the log"},
          {.name = "disable-log-stats", .kind = Kind::kBool, .fallback = "false", .key = "server.disable_log_stats",
           .reload = Reload::kLive, .help = "no line of figures every 10 s"},
      }};
  return group;
}

}  // namespace qengine
