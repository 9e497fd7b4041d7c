#include <cinttypes>

#include "block_format.hpp"

namespace qe_gguf {

Source bind_blocks(qe::Io& io, const qe::Part& part, Type type) {
  // Vectors of plain numbers come with the plain dtype, matrices as QE_GGML + type id.
  const qe_tensor t = io.tensor(part, "weight", qe::dtype_bit(static_cast<std::int32_t>(QE_GGML) + static_cast<std::int32_t>(type)), {part.n(), part.k()});
  const BlockSize size = block_size(type);
  Source s;
  s.data = static_cast<const std::byte*>(t.data);
  s.k = part.k();
  s.row_bytes = part.k() / size.values * size.bytes;
  s.order = row_order(part);
  return s;
}

RowOrder row_order(const qe::Part& part) {
  if (part.role() != QE_ROLE_Q && part.role() != QE_ROLE_K) return {};
  if (part.config().str("gguf.general.architecture") != "llama") return {};
  const std::int64_t head = part.model().head_dim;
  return head >= 2 && head % 2 == 0 && part.n() % head == 0 ? RowOrder{head} : RowOrder{};
}

void refuse_scale(const qe::Part& part, Type type, std::int64_t row, std::int64_t block) {
  throw qe::Error(QE_E_CHECKPOINT, std::string(part.name()) + ".weight",
                  qe::format("has a scale that is NaN or infinite: block %" PRId64 " of row %" PRId64 " (%s)", block, row, type_name(type)),
                  "the file is damaged, or was written by a quantizer that met a NaN");
}

void refuse_number(const qe::Part& part, Type type, std::int64_t row, std::int64_t column) {
  throw qe::Error(QE_E_CHECKPOINT, std::string(part.name()) + ".weight",
                  qe::format("has a weight that is NaN or infinite: column %" PRId64 " of row %" PRId64 " (%s)", column, row, type_name(type)),
                  "the file is damaged, or the model it was made from is");
}

}  // namespace qe_gguf
