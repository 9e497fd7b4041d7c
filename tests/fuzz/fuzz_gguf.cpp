// A GGUF file, through to the model config: refused with an Error, or every view lies inside it.
#include <cstdlib>

#include "core/base/error.hpp"
#include "core/model/checkpoint_memory.hpp"
#include "core/model/config.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace qengine;
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    const auto checkpoint = gguf_from_memory(bytes);
    unsigned sum = 0;
    for (const Tensor& t : checkpoint->tensors()) {
      if (t.offset > size || t.bytes > size - t.offset) std::abort();
      if (checkpoint->find(t.name) != &t) std::abort();
      for (const std::byte b : checkpoint->data(t)) sum += std::to_integer<unsigned>(b);
    }
    for (const auto& [key, value] : checkpoint->gguf_metadata().items()) {
      try {
        for (const std::string_view s : checkpoint->gguf_strings(key))
          for (const char c : s) sum += static_cast<unsigned char>(c);
      } catch (const Error&) {
      }
      try {
        sum += static_cast<unsigned>(checkpoint->gguf_floats(key).size());
      } catch (const Error&) {
      }
      try {
        sum += static_cast<unsigned>(checkpoint->gguf_ints(key).size());
      } catch (const Error&) {
      }
    }
    static volatile unsigned sink;
    sink = sum;
    (void)sink;
    const ModelConfig config = read_model_config(*checkpoint);
    if (config.window.size() != static_cast<std::size_t>(config.num_layers)) std::abort();
    if (config.rope.rot_dim < 65536) rope_inv_freq(config, nullptr);
  } catch (const Error& e) {
    if (e.message().find('\n') != std::string::npos || e.message().size() > 2000) std::abort();
  }
  return 0;
}
