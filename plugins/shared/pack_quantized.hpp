// compressed-tensors' pack-quantized: integers of 2 to 8 bits packed along K, a scale per group, row or tensor.
//
//   P.weight_packed      I32 [N, ceil(K*b/32)]  stream; or [N, ceil(K/floor(32/b))], one writer's padded form
//   P.weight_scale       F16, BF16, F32 [N, K/g] | [N, 1] | [1]
//   P.weight_shape       [2] = {N, K}: compared, never trusted
//   P.weight_zero_point  I32 [ceil(N*b/32), K/g] packed along N, or I8 [N, K/g] (writers until April 2025)
//   P.weight_g_idx       I32 [K], with actorder "group" only
//
// Codes and zero points are stored plus 2^(b-1); the offset cancels, so both are read as they lie.
// Source: vllm-project/compressed-tensors, compressors/pack_quantized.
#pragma once

#include <qe/plugin.hpp>

#include "shared/compressed_tensors_config.hpp"
#include "shared/int_matrix.hpp"

namespace qengine::packed {

// Whether a module's own tensors say that it is quantized. Tensors beat the configuration.
enum class Stored { kPacked, kPlain, kMissing, kUnknown /* no files */ };
Stored stored_as(const qe_model& model, std::string_view module, std::initializer_list<const char*> packed_suffixes);

// "P.weight is BF16 and there is no P.qweight".
std::string plain_reason(const qe_model& model, std::string_view module, const char* packed_suffix);

// How a module of a compressed-tensors checkpoint is stored, or why it is not for a reader of packed integers.
struct PackedModule {
  bool ours = false;
  std::string reason;   // when not ours
  std::string partial;  // when ours: what of the scheme is left out ("" = nothing)
  QuantArgs weights;
  qe::Activation activation;
};
PackedModule packed_module(const CompressedTensorsConfig& config, const qe_model& model, std::string_view name, int role);

// Asks for the module's tensors and, once data is there, checks values. Throws qe::Error naming the tensor.
IntMatrix bind_pack_quantized(qe::Io& io, const qe::Part& part, const PackedModule& module);

// Dtype of the scales as far as it can be known: of the tensor, else `assumed`.
std::int32_t scale_dtype(const qe_model& model, std::string_view module, const char* suffix, std::int32_t assumed);

// Whether a warning about this module is worth a line: what holds for the first one usually holds for all, and
// hundreds of equal lines help nobody.
inline bool speaks_for_all(const qe::Part& part) {
  return part.layer().index < 0 || (part.layer().index == 0 && part.role() <= QE_ROLE_Q);
}

// Throws when a tensor is there with another shape than its module needs, and says what made that shape: the
// text is better than a comparison of numbers. What is absent or of a wrong dtype is left to the caller's asking.
void expect_shape(const qe::Io& io, const qe::Part& part, const char* suffix, std::initializer_list<std::int64_t> dims, const std::string& because);
// The same for a table of groups by outputs, or outputs by groups (`group_axis` 1).
void expect_groups(const qe::Io& io, const qe::Part& part, const char* suffix, const IntMatrix& m, int group_axis);

// A rank that holds a range of the inputs: of those alone the order, over the whole table of scales.
void cut_order(IntMatrix& m, const qe::Part& part);

// Throws what a check found.
void require(const ValueFault& fault, const std::string& tensor);

inline constexpr std::uint64_t kFloats = qe::dtype_bit(QE_F32) | qe::dtype_bit(QE_F16) | qe::dtype_bit(QE_BF16);

// A table over a tensor of scales laid out [groups, rows] or [rows, groups].
FloatTable float_table(const qe_tensor& t, std::int64_t row_stride, std::int64_t group_stride);

}  // namespace qengine::packed
