// A safetensors file: refused with an Error, or every tensor lies inside it.
#include <cstdlib>

#include "core/base/error.hpp"
#include "core/model/safetensors.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace qengine;
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    const FileBytes file = FileBytes::borrow("fuzz.safetensors", bytes);
    const SafetensorsFile parsed = parse_safetensors(file);
    std::uint64_t total = 0;
    for (const Tensor& t : parsed.tensors) {
      if (t.offset > size || t.bytes > size - t.offset) std::abort();
      total += t.bytes;
    }
    if (total > size) std::abort();  // they may not overlap
  } catch (const Error& e) {
    if (e.message().find('\n') != std::string::npos || e.message().size() > 2000) std::abort();
  }
  return 0;
}
