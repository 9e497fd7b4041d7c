#include "format.hpp"

namespace qe_gguf {

const char* type_name(std::int32_t id) {
  static constexpr const char* kNames[] = {
      "F32",    "F16",     "Q4_0",    "Q4_1",    nullptr, nullptr, "Q5_0",  "Q5_1",  "Q8_0",    "Q8_1",   "Q2_K",
      "Q3_K",   "Q4_K",    "Q5_K",    "Q6_K",    "Q8_K",  "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S",
      "IQ2_S",  "IQ4_XS",  "I8",      "I16",     "I32",   "I64",   "F64",   "IQ1_M", "BF16",    nullptr,  nullptr,
      nullptr,  "TQ1_0",   "TQ2_0",   nullptr,   nullptr, nullptr, "MXFP4", "NVFP4", "Q1_0",    "Q2_0",
  };
  constexpr std::int32_t count = sizeof(kNames) / sizeof(kNames[0]);
  static_assert(count == 43);
  return id >= 0 && id < count ? kNames[id] : nullptr;
}

BlockSize block_size(std::int32_t id) {
  BlockSize size{0, 0};
  with_type(id, [&](auto t) { size = {t.kValues, sizeof(typename decltype(t)::Block)}; });
  if (id == kF32) size = {1, 4};
  if (id == kF16 || id == kBF16) size = {1, 2};
  return size;
}

}  // namespace qe_gguf
