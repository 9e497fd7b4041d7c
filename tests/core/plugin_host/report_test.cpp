#include <gtest/gtest.h>

#include "core/plugin_host/format_plan.hpp"

namespace qengine {
namespace {

LayerReport row(int index, const std::string& name, const std::string& plugin, std::uint64_t bytes, const std::string& why = "") {
  LayerReport r;
  r.name = index >= 0 ? "model.layers." + std::to_string(index) + "." + name : name;
  r.plugin = plugin;
  r.scheme = plugin == "bf16_ref" ? "bf16" : "w4g128";
  r.kernel = "loop";
  r.tier = "native";
  r.bytes = bytes;
  r.reason = why;
  r.index = index;
  return r;
}

TEST(Report, EqualNeighboursAreOneRow) {
  std::vector<LayerReport> rows;
  for (int i = 0; i < 4; ++i) {
    rows.push_back(row(i, "self_attn.qkv_proj", "awq_marlin", 1 << 20, "quant_method awq"));
    rows.push_back(row(i, "mlp.down_proj", i == 1 ? "bf16_ref" : "awq_marlin", 1 << 10, i == 1 ? "awq_marlin: listed" : "quant_method awq"));
  }
  rows.push_back(row(-1, "lm_head", "bf16_ref", 3ull << 30, "awq_marlin: no qweight"));
  rows.back().tied = true;
  const TableRow kv{"kv cache", "bf16", "paged_decode", "native", "4.21 GiB", "--kv-cache-dtype auto"};
  EXPECT_EQ(format_table(rows, false, {&kv, 1}),
            "layers                  plugin:scheme      kernel        tier    bytes     why\n"
            "0-3 self_attn.qkv_proj  awq_marlin:w4g128  loop          native   4.0 MiB  quant_method awq\n"
            "0,2-3 mlp.down_proj     awq_marlin:w4g128  loop          native   3.0 KiB\n"
            "1 mlp.down_proj         bf16_ref:bf16      loop          native   1.0 KiB  awq_marlin: listed\n"
            "embed_tokens = lm_head  bf16_ref:bf16      loop          native  3.00 GiB  awq_marlin: no qweight; tied\n"
            "kv cache                bf16               paged_decode  native  4.21 GiB  --kv-cache-dtype auto\n");
  const std::string expanded = format_table(rows, true);
  EXPECT_EQ(std::count(expanded.begin(), expanded.end(), '\n'), 10);
}

TEST(Report, BytesReadAsPeopleSayThem) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(294125568), "280.5 MiB");
  EXPECT_EQ(format_bytes(2665925632), "2.48 GiB");
}

}  // namespace
}  // namespace qengine
