// From settings to what the server takes: its options, and the backends of the profile, now and when it is read again.
#pragma once

#include "apps/qengine/command.hpp"
#include "core/server/service.hpp"

namespace qengine {

// The [[backend]] that answers, or the one that flags and profile say without any. Throws Error E101.
server::BackendSpec active_backend(const Invocation& in);

// `in` must outlive the server: a reload reads its profile again. Throws Error E101.
server::ServiceOptions service_options(const Invocation& in, const Engine& engine);

}  // namespace qengine
