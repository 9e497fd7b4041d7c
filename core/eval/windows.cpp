#include "core/eval/windows.hpp"

#include <algorithm>

namespace qengine {

std::vector<Window> document_windows(const std::vector<std::vector<std::int32_t>>& documents, std::int64_t context, std::int64_t stride) {
  std::vector<Window> out;
  for (std::size_t d = 0; d < documents.size(); ++d) {
    const auto& ids = documents[d];
    const std::int64_t size = std::ssize(ids);
    for (std::int64_t begin = 0, scored = 1; scored < size; begin += stride) {
      const std::int64_t end = std::min(begin + context, size);
      out.push_back({{ids.begin() + begin, ids.begin() + end}, scored - begin, static_cast<std::int64_t>(d), begin});
      scored = end;
    }
  }
  return out;
}

std::vector<Window> chunk_windows(const std::vector<std::int32_t>& ids, std::int64_t context, std::optional<std::int32_t> bos) {
  std::vector<Window> out;
  for (std::int64_t begin = 0; begin + context <= std::ssize(ids); begin += context) {
    Window w{{ids.begin() + begin, ids.begin() + begin + context}, context / 2 + 1, 0, begin};
    if (bos) w.ids[0] = *bos;
    out.push_back(std::move(w));
  }
  return out;
}

std::int64_t scored_tokens(const std::vector<Window>& windows) {
  std::int64_t n = 0;
  for (const Window& w : windows) n += std::ssize(w.ids) - w.first;
  return n;
}

}  // namespace qengine
