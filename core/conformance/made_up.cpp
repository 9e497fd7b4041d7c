#include "core/conformance/made_up.hpp"

#include <qe/numbers.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>

#include "core/conformance/check.hpp"

namespace qengine::conformance {
namespace {

// To nearest, ties to even; finite values within the range of a half.
std::uint16_t half_of(float x) {
  const float a = std::fabs(x);
  int e = 0;
  std::frexp(a, &e);
  const int unit = std::max(e - 11, -24);  // of the last place
  auto steps = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(a, -unit)));
  const std::uint32_t bits = unit == -24 ? steps : (static_cast<std::uint32_t>(unit + 24) << 10) + steps;
  return static_cast<std::uint16_t>(bits | (std::signbit(x) ? 0x8000u : 0u));
}

}  // namespace

Json made_up_config_json() {
  return {{"architectures", {"LlamaForCausalLM"}}, {"model_type", "llama"}, {"hidden_size", 256}, {"intermediate_size", 384}, {"num_hidden_layers", 2},
          {"num_attention_heads", 4}, {"num_key_value_heads", 2}, {"head_dim", 32}, {"vocab_size", 320}, {"max_position_embeddings", 256},
          {"rms_norm_eps", 1e-5}, {"rope_theta", 10000.0}, {"hidden_act", "silu"}, {"tie_word_embeddings", false}, {"torch_dtype", "bfloat16"},
          {"bos_token_id", 1}, {"eos_token_id", 2}};
}

ModelConfig made_up_config() { return read_model_config(*Checkpoint::from_config(made_up_config_json())); }

std::size_t element_bytes(std::int32_t dtype) {
  switch (dtype) {
    case QE_F32: case QE_I32: return 4;
    case QE_F16: case QE_BF16: case QE_I16: return 2;
    case QE_I64: return 8;
    default: return dtype < QE_GGML ? 1 : 0;
  }
}

KitTensors::Entry tensor_of(std::int32_t dtype, std::vector<std::int64_t> shape, const std::vector<float>& values) {
  auto own = std::make_shared<std::vector<std::byte>>(values.size() * element_bytes(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint16_t half = dtype == QE_F16 ? half_of(values[i]) : qe::f32_to_bf16(values[i]);
    if (dtype == QE_F32) std::memcpy(own->data() + 4 * i, &values[i], 4);
    else std::memcpy(own->data() + 2 * i, &half, 2);
  }
  return {dtype, std::move(shape), *own, own};
}

KitTensors::Entry made_up_tensor(const std::string& name, const qe_want& want, std::int64_t k) {
  std::vector<std::int64_t> shape;
  std::int64_t count = 1;
  constexpr std::uint64_t kFloats = 1u << QE_F32 | 1u << QE_F16 | 1u << QE_BF16;
  const bool one = want.rank < 0 && want.dtypes && !(want.dtypes & ~kFloats);  // a scale of any shape may be a single number
  if (one) shape = {1};
  else if (want.rank < 0 || want.rank > 4) fail("%s may have any shape: no tensor can be made up; name a checkpoint in check.json", name.c_str());
  for (int i = 0; !one && i < want.rank; ++i) {
    if (want.dim[i] < 0 || want.dim[i] > (1 << 24)) fail("%s has an open shape: no tensor can be made up; name a checkpoint in check.json", name.c_str());
    shape.push_back(want.dim[i]);
    count *= want.dim[i];
  }
  std::int32_t dtype = 0;
  for (const std::int32_t d : {QE_F16, QE_BF16, QE_F32, QE_E8M0, QE_E4M3, QE_E5M2, QE_U8, QE_I8, QE_I32, QE_I16, QE_E2M1X2, QE_I64})
    if (dtype == 0 && want.dtypes >> d & 1) dtype = d;
  if (dtype == 0) fail("%s may have any type: no tensor can be made up; name a checkpoint in check.json", name.c_str());

  std::mt19937 rng(static_cast<std::uint32_t>(std::hash<std::string>{}(name)));
  const auto n = static_cast<std::size_t>(count);
  if (dtype == QE_F16 || dtype == QE_BF16 || dtype == QE_F32) {
    std::vector<float> values(n);
    const bool matrix = want.rank == 2 && want.dim[1] == k && name.ends_with(".weight");  // a number a weight
    std::uniform_real_distribution<float> positive(0.005f, 0.02f), both(-0.05f, 0.05f);
    for (float& v : values) v = matrix ? both(rng) : positive(rng);
    return tensor_of(dtype, std::move(shape), values);
  }
  auto own = std::make_shared<std::vector<std::byte>>(n * element_bytes(dtype));
  std::uniform_int_distribution<int> byte(0, 255), exponent(118, 122);
  std::normal_distribution<float> normal(0, 60);
  const bool scale = name.find("scale") != std::string::npos;  // positive
  for (std::byte& b : *own) {
    int v = byte(rng);
    // Codes as a quantizer leaves them, which fills the range: few are near zero.
    if (dtype == QE_E4M3) v = qe::f32_to_e4m3(normal(rng));
    if (dtype == QE_E5M2) v = qe::f32_to_e5m2(normal(rng));
    if (scale && (dtype == QE_E4M3 || dtype == QE_E5M2)) v = 0x20 | (v & 0x0f);
    if (dtype == QE_E8M0) v = exponent(rng);                    // scales about 2^-7
    b = static_cast<std::byte>(v);
  }
  return {dtype, std::move(shape), *own, own};
}

}  // namespace qengine::conformance
