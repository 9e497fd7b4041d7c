// Two engines over the same text, in step: while one computes a position the other's row of logits waits, so that memory
// holds a few rows and not a text times a vocabulary.
#pragma once

#include <functional>
#include <span>

#include "core/engine/engine.hpp"
#include "core/eval/windows.hpp"

namespace qengine {

// For every scored token of the window, in order: each(position of the token before it, base's logits there, model's). Throws what
// either engine throws.
void compare_logits(Engine& base, Engine& model, const Window& window,
                    const std::function<void(std::int64_t position, std::span<const float> base, std::span<const float> model)>& each);

}  // namespace qengine
