#include "shared/int_matrix.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace qengine::packed {

ValueFault check_finite(const IntMatrix& m, const FloatTable& table) {
  std::int64_t nan = 0, inf = 0, first_row = -1, first_group = -1;
  for (std::int64_t g = 0; g < m.groups; ++g)
    for (std::int64_t n = 0; n < m.n; ++n) {
      const float v = table.get(n, g);
      if (std::isfinite(v)) continue;
      (std::isnan(v) ? nan : inf)++;
      if (first_row < 0) first_row = n, first_group = g;
    }
  if (nan + inf == 0) return {};
  const std::string what = nan && inf ? qe::format("%lld NaN and %lld infinite values", static_cast<long long>(nan), static_cast<long long>(inf))
                           : nan      ? qe::format("%lld NaN value%s", static_cast<long long>(nan), nan == 1 ? "" : "s")
                                      : qe::format("%lld infinite value%s", static_cast<long long>(inf), inf == 1 ? "" : "s");
  return {qe::format("has %s (first at output %lld, group %lld)", what.c_str(), static_cast<long long>(first_row), static_cast<long long>(first_group)),
          "the file is damaged or the quantizer failed; download it again"};
}

void set_plain_groups(IntMatrix& m, std::int64_t group_size) {
  m.group_size = group_size < 0 || group_size > m.k ? m.k : group_size;
  m.run = m.group_size;
}

namespace {

// `order`, inputs group by group, with every group filled up to whole runs of columns.
void pad_groups(IntMatrix& m, const std::vector<std::int32_t>& order, const std::int32_t* index) {
  m.run = order.size() > 32 ? 32 : 16;  // a run must be shorter than the row
  m.order.clear();
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i > 0 && index[order[i]] != index[order[i - 1]])
      while (m.order.size() % static_cast<std::size_t>(m.run) != 0) m.order.push_back(-1);
    m.order.push_back(order[i]);
  }
}

}  // namespace

ValueFault set_group_index(IntMatrix& m, const std::int32_t* index) {
  std::vector<std::int64_t> count(m.groups, 0);
  bool sorted = true, plain = true;
  for (std::int64_t k = 0; k < m.k; ++k) {
    const std::int32_t g = index[k];
    if (g < 0 || g >= m.groups)
      return {qe::format("has %d at input %lld; %lld groups allow 0 to %lld", g, static_cast<long long>(k), static_cast<long long>(m.groups),
                     static_cast<long long>(m.groups - 1)),
              "the file is damaged, or group_size in quantization_config is not the one it was made with"};
    ++count[g];
    sorted = sorted && (k == 0 || index[k - 1] <= g);
    plain = plain && g == k / m.group_size;
  }
  if (plain) return {};

  m.g_idx.assign(index, index + m.k);
  std::vector<std::int32_t> order(m.k);
  std::iota(order.begin(), order.end(), 0);
  if (!sorted) std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return index[a] < index[b]; });

  std::erase(count, 0);
  bool equal = true;  // all but the last, which may be short
  for (std::size_t i = 1; i < count.size(); ++i) equal = equal && (i + 1 < count.size() ? count[i] == count[0] : count[i] <= count[0]);
  if (equal) {
    m.run = count[0];
    if (!sorted) m.order = std::move(order);
    return {};
  }
  pad_groups(m, order, index);  // unequal groups, which no common quantizer writes
  return {};
}

void set_cut_order(IntMatrix& m, std::int64_t begin, std::int64_t end) {
  const std::int32_t* index = m.g_idx.data() + begin;
  std::vector<std::int32_t> order(end - begin);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return index[a] < index[b]; });
  pad_groups(m, order, index);
}

}  // namespace qengine::packed
