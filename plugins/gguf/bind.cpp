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
  if (io.loading()) s.bad = std::make_shared<std::atomic<std::int64_t>>(-1);
  return s;
}

RowOrder row_order(const qe::Part& part) {
  if (part.role() != QE_ROLE_Q && part.role() != QE_ROLE_K) return {};
  if (part.config().str("gguf.general.architecture") != "llama") return {};
  const std::int64_t head = part.model().head_dim;
  return head >= 2 && head % 2 == 0 && part.n() % head == 0 ? RowOrder{head} : RowOrder{};
}

void refuse_if_bad(const Source& s, const qe::Part& part, Type type, const char* what) {
  const std::int64_t n = s.bad->load();
  if (n < 0) return;
  const std::int64_t row = s.order.file_row(n);
  throw qe::Error(QE_E_CHECKPOINT, std::string(part.name()) + ".weight",
                  qe::format("has a %s that is NaN or infinite in row %" PRId64 " (%s)", what, row, type_name(type)),
                  "the file is damaged, or the model it was made from is");
}

}  // namespace qe_gguf
