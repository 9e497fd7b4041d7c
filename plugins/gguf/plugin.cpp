// gguf: the matrices of GGUF files, each in the block type it is stored in. On CPUs and NVIDIA GPUs.
//
// A file mixes types by tensor, so nothing is inferred from its name or general.file_type: the type
// of PART.weight decides, part by part. Layouts: format.hpp. What is refused: README.md.
#include <qe/stream_linear.hpp>

#include "block_format.hpp"

namespace qe_gguf {

// In the order of the formats below.
inline constexpr Type kTypes[] = {kQ4_0, kQ4_1, kQ5_0, kQ5_1,   kQ8_0,   kQ2_K,  kQ3_K, kQ4_K,
                                  kQ5_K, kQ6_K, kIQ4_NL, kIQ4_XS, kMXFP4, kF32, kF16,  kBF16};

struct Gguf : qe::Linears<Gguf, BlockFormat<Q4_0>, BlockFormat<Q4_1>, BlockFormat<Q5_0>, BlockFormat<Q5_1>, BlockFormat<Q8_0>,
                          BlockFormat<Q2_K>, BlockFormat<Q3_K>, BlockFormat<Q4_K>, BlockFormat<Q5_K>, BlockFormat<Q6_K>,
                          BlockFormat<IQ4_NL>, BlockFormat<IQ4_XS>, BlockFormat<MXFP4>, F32, F16, BF16> {
  static constexpr qe::Row kRows[] = {{QE_CPU, 0, 0, 1}, {QE_CUDA, 80, 0, 2}};
  static constexpr qe::Method kMethods[] = {{"gguf", "gguf", "GGUF block types, one for each tensor"}};

  static int detect(const qe_model& m, qe::Reason& why) {
    const std::string found = qe::Config{m.cfg}.str("quant_method", "absent");
    if (found == "gguf") return why("a GGUF file"), 1000;
    return why("quant_method is %s; this plugin reads GGUF files", found.c_str()), 0;
  }

  // [scan: any thread, no device]
  static int pick(const qe_model& m, const qe_layer& l, const qe_part& p, qe::Reason& why) {
    const std::string name = std::string(qe::view(p.name)) + ".weight";
    qe_tensor t{};
    if (!m.ckpt) return why("the type of %s is in the file; planning from a configuration alone is not possible", name.c_str()), -1;
    if (qe::host().tensor(qe::host().self, m.ckpt, qe::str(name), &t) != QE_OK)
      return why("%s is not in the file", name.c_str()), -1;
    const int type = t.dtype - QE_GGML;
    for (std::size_t i = 0; i < std::size(kTypes); ++i) {
      if (kTypes[i] != type) continue;
      const BlockSize size = block_size(type);
      if (l.k % size.values != 0)
        return why("%s has %lld inputs; %s blocks hold %lld", name.c_str(), static_cast<long long>(l.k), type_name(type),
                   static_cast<long long>(size.values)), -1;
      return int(i);
    }
    const char* known = t.dtype >= QE_GGML ? type_name(type) : qe::dtype_name(t.dtype);
    why("%s is %s; supported: Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4 F32 F16 BF16", name.c_str(),
        known ? known : "of an unknown type");
    return -1;
  }

  // "Q4_1"; the types of all parts when they differ.
  static std::string scheme(const qe_model& m, const qe_layer& l) {
    std::string out;
    for (std::uint32_t i = 0; i < l.n_parts; ++i) {
      qe_tensor t{};
      const std::string name = std::string(qe::view(l.parts[i]->name)) + ".weight";
      if (!m.ckpt || qe::host().tensor(qe::host().self, m.ckpt, qe::str(name), &t) != QE_OK) continue;
      const char* type = type_name(t.dtype - QE_GGML);
      if (type && out.find(type) == std::string::npos) out += (out.empty() ? "" : "+") + std::string(type);
    }
    return out;
  }
};

}  // namespace qe_gguf

QE_LINEAR_PLUGIN(qe_gguf::Gguf, .id = "qengine.gguf", .name = "gguf", .version = "0.1.0", .vendor = "qengine",
                 .summary = "the matrices of GGUF files, each in its own block type")
