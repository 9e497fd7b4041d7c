// Which checkpoints and layers are ours, and the one exported symbol.
#include <qe/stream_linear.hpp>

#include "format.hpp"

struct Plugin : qe::Linear<Plugin, Format> {
  static constexpr const char *kScheme = "@NAME@", *kQuantMethod = "@NAME@";
  static constexpr qe::Row kRows[] = {{QE_CPU, 0, 0, 1}, {QE_CUDA, 80, 0, 2}};  // device, SM from, to, tier (1: native, 2: weights only)

  // 1000 mine, 900 another tool's dialect of the same arithmetic, 600 parts of the model, 300 only if named, 0 not mine.
  static int detect(const qe_model& m, qe::Reason& why) {
    const std::string method = qe::Config(m.cfg).str("quant_method", "absent");
    why("quant_method is %s; this plugin reads @NAME@", method.c_str());
    return method == kQuantMethod ? 1000 : 0;
  }

  // What only the format knows; the SDK has checked the rest. A refusal names the value found and those supported.
  static qe::Claim check(const qe_model& m, const qe_layer& l, qe::Reason& why) {
    const qe::Config config(m.cfg);
    for (std::uint32_t i = 0; i < l.n_parts; ++i) {
      const std::string name(qe::view(l.parts[i]->name));
      if (config.lists("ignore", name)) return why("listed in ignore"), qe::Claim::no;
      // tensors beat the configuration: a layer that was left in 16 bits has a plain `weight`
      const qe::Io io(m, qe::Io::Mode::plan);
      if (m.ckpt && !io.look(name + ".q") && io.look(name + ".weight")) return why("%s.q is not in the checkpoint", name.c_str()), qe::Claim::no;
    }
    if (l.method && *l.method && std::string_view(l.method) != kScheme) return why("scheme %s; supported: %s", l.method, kScheme), qe::Claim::no;
    const std::int64_t group = config.i64("group_size", 32);
    if (group != 32 && group != 64 && group != 128) return why("group_size %lld; supported: 32, 64, 128", static_cast<long long>(group)), qe::Claim::no;
    if (l.k % group) return why("%lld inputs; must be a multiple of group_size %lld", static_cast<long long>(l.k), static_cast<long long>(group)), qe::Claim::no;
    return qe::Claim::native;
  }

  static std::string scheme(const qe_model& m, const qe_layer&) { return qe::format("w4g%lld", static_cast<long long>(qe::Config(m.cfg).i64("group_size", 32))); }
};

QE_LINEAR_PLUGIN(Plugin, .id = "@ID@", .name = "@NAME@", .version = "0.1.0", .vendor = "@VENDOR@", .summary = "4-bit weights with a scale a group")
