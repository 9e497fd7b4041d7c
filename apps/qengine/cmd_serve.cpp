// serve: the OpenAI-compatible server. Loads, listens, runs until a signal, drains. SIGHUP reads the profile again.
#include <csignal>
#include <thread>

#include "apps/qengine/command.hpp"
#include "apps/qengine/model_setup.hpp"
#include "apps/qengine/serve_setup.hpp"
#include "core/base/log.hpp"
#include "core/server/service.hpp"

namespace qengine {
namespace {

std::atomic<bool> hung_up{false};

int serve(const Invocation& in) {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGHUP, [](int) { hung_up = true; });
  const GracefulStop stop;
  server::BackendSpec spec = active_backend(in);
  auto engine = load_engine(in, spec.options);
  if (!engine->tokenizer()) throw Error("E210", "this model has no tokenizer").hint("--tokenizer DIR names one");
  auto backend = std::make_shared<server::Backend>(std::move(spec), 1, std::move(engine));
  server::ServiceOptions options = service_options(in, *backend->engine);
  server::Service server(std::move(backend), std::move(options));
  server.start();
  log("server").info("Starting qengine server on {}", server.address());
  note(in, "listening on " + server.address() + " as " + server.model_name());

  while (!GracefulStop::requested()) {
    if (hung_up.exchange(false)) server.reload();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  log("server").info("draining: {} requests are running", server.active());
  static const std::atomic<bool> never{false};  // a second signal ends the process by itself
  const bool clean = server.drain(never);
  return clean ? 0 : GracefulStop::exit_code();
}

}  // namespace

extern const Command serve_command{
    .name = "serve",
    .summary = "answer requests over HTTP, as OpenAI's API does",
    .usage = {"MODEL [--port N] [--api-key-file FILE]", "--config FILE.toml"},
    .details = "Listens on 127.0.0.1:8000 unless told otherwise. SIGTERM finishes what was accepted\n(--shutdown-timeout), a second one ends at once. SIGHUP reads the profile again and changes\nto what it says, without losing a request; so do POST /admin/reload and /admin/switch.",
    .groups = with_model_groups({&server_settings(), &chat_settings(), &sampling_settings(), &canary_settings(), &gate_settings()}),
    .defaults = {{"log-level", "info"}},
    .positional = "model",
    .run = serve};

}  // namespace qengine
