// chat_session: `qengine run --chat` on a terminal without a prompt. Turns go to and fro, Ctrl-C stops an
// answer, /exit ends.
#pragma once

#include "apps/qengine/command.hpp"
#include "core/engine/engine.hpp"

namespace qengine {

// Returns the exit code.
int chat_session(const Invocation& in, Engine& engine, const SamplingParams& sampling);

}  // namespace qengine
