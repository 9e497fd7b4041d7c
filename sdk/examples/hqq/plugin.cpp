// hqq: which checkpoints and layers are ours, and the one exported symbol.
#include <qe/stream_linear.hpp>

#include "format.hpp"

struct Plugin : qe::Linear<Plugin, Hqq4> {
  static constexpr const char *kScheme = "hqq", *kQuantMethod = "hqq";
  static constexpr qe::Row kRows[] = {{QE_CPU, 0, 0, 1}, {QE_CUDA, 80, 0, 2}};
  static constexpr qe_alias kAliases[] = {{sizeof(qe_alias), 2, "hqq_4bit", "hqq", "hqq", "", "", ""}};

  static int detect(const qe_model& m, qe::Reason& why) {
    const std::string method = qe::Config(m.cfg).str("quant_method", "absent");
    why("quant_method is %s; this plugin reads hqq", method.c_str());
    return method == kQuantMethod ? 1000 : 0;
  }

  static qe::Claim check(const qe_model& m, const qe_layer& l, qe::Reason& why) {
    const qe::Config config(m.cfg);
    for (std::uint32_t i = 0; i < l.n_parts; ++i) {
      const std::string name(qe::view(l.parts[i]->name));
      const qe::Io io(m, qe::Io::Mode::plan);
      if (m.ckpt && !io.look(name + ".W_q") && io.look(name + ".weight")) return why("not quantized: %s.W_q is not in the checkpoint", name.c_str()), qe::Claim::no;
      if (!m.ckpt && config.lists("skip_modules", name)) return why("listed in skip_modules"), qe::Claim::no;
    }
    if (l.method && *l.method && std::string_view(l.method) != kScheme) return why("scheme %s; supported: hqq", l.method), qe::Claim::no;
    const std::int64_t bits = config.i64("quant_config.weight_quant_params.nbits", 4), axis = config.i64("quant_config.weight_quant_params.axis", 1), g = Hqq4::group_of(m);
    if (bits != 4) return why("nbits %lld; supported: 4", static_cast<long long>(bits)), qe::Claim::no;
    if (axis != 1) return why("axis %lld; supported: 1 (groups along the inputs)", static_cast<long long>(axis)), qe::Claim::no;
    if (g != 16 && g != 32 && g != 64 && g != 128) return why("group_size %lld; supported: 16, 32, 64, 128", static_cast<long long>(g)), qe::Claim::no;
    for (std::uint32_t i = 0; i < l.n_parts; ++i)
      if (l.k % g || l.parts[i]->n * l.k / g % 2) return why("%lld x %lld weights; groups of %lld must divide a row and come in pairs", static_cast<long long>(l.parts[i]->n), static_cast<long long>(l.k), static_cast<long long>(g)), qe::Claim::no;
    return qe::Claim::native;
  }

  static std::string scheme(const qe_model& m, const qe_layer&) { return qe::format("w4g%lld", static_cast<long long>(Hqq4::group_of(m))); }
};

QE_LINEAR_PLUGIN(Plugin, .id = "org.example.hqq", .name = "hqq", .version = "0.1.0", .vendor = "qengine examples", .summary = "HQQ weights of 4 bits")
