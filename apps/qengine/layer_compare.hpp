// The error of every layer of one model against another: which layer a format hurts.
#pragma once

#include <string>
#include <vector>

#include "apps/qengine/command.hpp"
#include "core/engine/engine.hpp"
#include "core/eval/layer_error.hpp"
#include "core/eval/windows.hpp"

namespace qengine {

// Runs the beginning of the text (2,048 tokens at most) through both, each model on its own hidden states. Throws Error E101
// when their layers do not correspond.
LayerErrors compare_layers(const Invocation& in, Engine& base, Engine& model, const std::vector<Window>& windows);

Json layer_errors_json(const LayerErrors& errors);
std::string layer_errors_text(const LayerErrors& errors);

}  // namespace qengine
