// bf16_ref: every layer whose P.weight is F32, F16 or BF16. The whole of an unquantized model, and
// whatever a quantized checkpoint left alone.
#include <qe/stream_linear.hpp>

#include "format.hpp"

namespace bf16_ref {

struct Plugin : qe::Linears<Plugin, F32, F16, BF16> {
  static constexpr qe::Row kRows[] = {{QE_CPU, 0, 0, 1}, {QE_CUDA, 80, 0, 2}};
  static constexpr qe::Method kMethods[] = {{"f32", "none", "32-bit floats"}, {"f16", "none", "half precision"}, {"bf16", "none", "bfloat16"}};
  static constexpr int kDtypes[] = {QE_F32, QE_F16, QE_BF16};

  static int detect(const qe_model& m, qe::Reason& why) {
    const qe::Config c(m.cfg);
    const std::string method = c.str("quant_method");
    if (method.empty() || method == "none") return why("the checkpoint is not quantized"), 1000;
    // Where only the KV cache is quantized, the weights are as they were.
    if (const std::int64_t groups = c.size("config_groups"); groups >= 0) {
      bool weights = false;
      for (std::int64_t i = 0; i < groups; ++i) {
        const std::string group = "config_groups.#" + std::to_string(i);
        weights |= c.has((group + ".weights").c_str()) || !c.has((group + ".targets").c_str());  // or the name of a scheme
      }
      if (!weights) return why("no config_groups with weights: they are not quantized"), 900;
    } else if (c.has("kv_cache_quant_algo") && !c.has("quant_algo")) {
      return why("no quant_algo: the weights are not quantized"), 900;
    }
    return why("quant_method is %s; this plugin takes the layers that others leave in 16 or 32 bits", method.c_str()), 0;
  }

  static int pick(const qe_model& m, const qe_layer&, const qe_part& part, qe::Reason& why) {
    const std::string name = std::string(qe::view(part.name)) + ".weight";
    const auto t = qe::Io(m, qe::Io::Mode::plan).look(name);
    if (!t) {
      if (m.ckpt) return why("%s is not in the checkpoint", name.c_str()), -1;
      // From config.json alone: what its dtype says.
      const std::string dtype = qe::Config(m.cfg).str("model.torch_dtype", qe::Config(m.cfg).str("model.dtype", "bfloat16"));
      return dtype == "float32" ? 0 : dtype == "float16" ? 1 : 2;
    }
    for (int i = 0; i < 3; ++i)
      if (t->dtype == kDtypes[i]) return i;
    return why("%s is %s; this plugin reads F32, F16 and BF16", name.c_str(), qe::dtype_name(t->dtype)), -1;
  }

  static std::string scheme(const qe_model& m, const qe_layer& l) {
    qe_reason text{};
    qe::Reason why(text);
    const int which = l.n_parts ? pick(m, l, *l.parts[0], why) : 2;
    return which < 0 ? "" : kMethods[which].name;
  }
};

}  // namespace bf16_ref

QE_LINEAR_PLUGIN(bf16_ref::Plugin, .id = "qengine.bf16_ref", .name = "bf16_ref", .version = "0.1.0", .vendor = "qengine",
                 .summary = "unquantized layers: F32, F16, BF16")
