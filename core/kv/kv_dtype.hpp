// How keys and values lie in core's own cache.
#pragma once

#include <cstdint>

namespace qengine {

enum class KvDtype : std::int32_t { kF32 = 0, kF16 = 1, kBf16 = 2 };

}  // namespace qengine
