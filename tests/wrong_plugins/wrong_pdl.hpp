// Kernels that a step is wrong with, beside the right ones of the SDK. `programmatic`: launched so. Null, or the driver's text.
#pragma once

#include <qe/plugin.h>

#include <cstdint>

namespace wrong {

// Copies `words` words of 16 bits to memory of its own, before it waits, and says where they are.
const char* stage_early(const void* in, std::int64_t words, bool programmatic, qe_stream stream, void** to);
constexpr std::int64_t kMostStaged = 1 << 18;
// Clears `bytes`, before it waits.
const char* clear_early(void* at, std::uint64_t bytes, bool programmatic, qe_stream stream);
// Does nothing and does not wait.
const char* end_early(bool programmatic, qe_stream stream);
// Waits, and then for `us` microseconds more.
const char* idle(std::uint32_t us, bool programmatic, qe_stream stream);
// Changes these bits of the first word; launched plainly.
const char* flip(void* at, std::uint16_t bits, qe_stream stream);

}  // namespace wrong
