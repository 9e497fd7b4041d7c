// Published shapes in, bytes out: every figure here was computed from the shapes by hand or by others.
#include "core/plan/plan.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "core/base/error.hpp"
#include "core/plan/plot.hpp"
#include "core/plan/tables.hpp"

namespace qengine {
namespace {

PlanInput input(const char* shape, const char* format, std::int64_t kv_bits, std::int64_t context, std::int64_t concurrency, const char* card) {
  PlanInput in;
  in.shape = shape_named(shape).shape;
  in.weights = stored_weights(in.shape, format_named(format));
  in.kv_bytes_per_token = kv_bytes_per_token(in.shape, kv_bits);
  in.card = card_named(card);
  in.context = context;
  in.concurrency = concurrency;
  in.max_model_len = in.shape.max_position;
  return in;
}

struct Golden {
  int row;
  const char *shape, *format;
  std::int64_t kv_bits, context, concurrency;
  const char* card;
  std::int64_t weights, read, tokens;
  bool fits;
  double tok_s;
};

constexpr Golden kGolden[] = {
    {1, "qwen3-0.6b", "bf16", 16, 8192, 1, "ada-8gb-laptop", 1192099840, 2131625984, 45664, true, 120.1},
    {2, "qwen3-0.6b", "fp8_per_tensor", 8, 32768, 1, "ada-8gb-laptop", 751698704, 2630748944ll, 99008, true, 97.31},
    {3, "qwen3-4b", "bf16", 16, 8192, 1, "ada-8gb-laptop", 8044936192ll, 9252900864ll, 0, false, 27.67},
    {4, "qwen3-4b", "awq", 16, 8192, 1, "ada-8gb-laptop", 2665925632ll, 3873890304ll, 24880, true, 66.08},
    {5, "qwen3-4b", "fp8_per_tensor", 8, 32768, 4, "rtx4090", 4411621360ll, 14075318256ll, 238976, true, 286.46},
    {6, "qwen3-8b", "bf16", 16, 8192, 1, "rtx4090", 16381470720ll, 16344778752ll, 38016, true, 61.67},
    {7, "qwen3-8b", "gptq8", 16, 16384, 4, "rtx3090", 9544230912ll, 17963280384ll, 84656, true, 208.43},
    {8, "qwen3-8b", "fp8_per_block", 8, 8192, 16, "l40s", 9437399040ll, 17856546816ll, 449984, true, 774.17},
    {9, "qwen3-14b", "bf16", 16, 8192, 1, "rtx5090", 29536614400ll, 29322977280ll, 752, false, 61.11},
    {10, "qwen3-14b", "awq", 16, 32768, 1, "rtx5090", 9976576000ll, 13789470720ll, 120144, true, 129.95},
    {11, "qwen3-32b", "awq", 16, 8192, 1, "rtx4090", 19325298688ll, 19916967936ll, 9488, true, 50.61},
    {12, "qwen3-32b", "awq", 16, 131072, 1, "a100-80-sxm", 19325298688ll, 52129222656ll, 219120, true, 39.11},
    {13, "qwen3-32b", "fp8_per_tensor", 8, 131072, 1, "a100-80-sxm", 34318626560ll, 49942681344ll, 323872, true, 40.83},
    {14, "qwen3-32b", "bf16", 16, 8192, 1, "h100-sxm", 65524246528ll, 66115915776ll, 43008, true, 50.67},
    {15, "qwen3-32b", "gptq", 8, 131072, 4, "rtx-pro-6000", 19203401728ll, 86367094784ll, 558416, true, 82.99},
    {16, "llama-3.1-8b", "bf16", 16, 32768, 1, "rtx5090", 16060522496ll, 19304824832ll, 104288, true, 92.83},
    {17, "llama-3.3-70b", "awq", 16, 8192, 1, "l40s", 39767785472ll, 40350810112ll, 8032, false, 21.41},
    {18, "llama-3.3-70b", "awq", 16, 8192, 1, "a6000", 39767785472ll, 40350810112ll, 17072, true, 19.03},
    {19, "llama-3.3-70b", "fp8_per_tensor", 8, 8192, 1, "h100-sxm", 72656373952ll, 71897221312ll, 25040, true, 46.59},
    {20, "llama-3.3-70b", "bf16", 16, 8192, 1, "h200", 141107412992ll, 141690437632ll, 0, false, 33.88},
    {21, "llama-3.3-70b", "bf16", 16, 8192, 1, "b200", 141107412992ll, 141690437632ll, 102592, true, 56.46},
    {22, "llama-3.3-70b", "fp8_per_tensor", 8, 131072, 1, "h200", 72656373952ll, 92029880512ll, 390544, true, 52.16},
    {23, "llama-3.3-70b", "fp8_per_tensor", 8, 8192, 64, "b200", 72656373952ll, 156455422144ll, 622976, true, 3272.5},
};

TEST(Plan, GoldenRowsToTheByte) {
  for (const Golden& g : kGolden) {
    SCOPED_TRACE("row " + std::to_string(g.row));
    const PlanInput in = input(g.shape, g.format, g.kv_bits, g.context, g.concurrency, g.card);
    const Plan p = make_plan(in);
    EXPECT_EQ(p.weights, g.weights);
    EXPECT_EQ(read_bytes(in, g.concurrency, g.context), g.read);
    EXPECT_EQ(p.tokens, g.tokens);
    EXPECT_EQ(p.fits, g.fits);
    EXPECT_EQ(std::round(ceiling(in, g.concurrency, g.context).tok_s * 100) / 100, g.tok_s);
    EXPECT_EQ(p.fits, p.short_bytes == 0);
  }
}

struct Model {
  const char* shape;
  std::int64_t linear, embedding, norm, bf16, fp8, w4z, kv_bf16, kv_fp8, reserve;
};

constexpr Model kModels[] = {
    {"qwen3-0.6b", 440401920, 155582464, 65536, 1192099840, 751698704, 540098560, 114688, 57344, 1107689472},
    {"qwen3-1.7b", 1409286144, 311164928, 123904, 3441149952ll, 2031864592, 1354745856, 114688, 57344, 1153826816},
    {"qwen3-4b", 3633315840ll, 388956160, 196096, 8044936192ll, 4411621360ll, 2665925632ll, 147456, 73728, 1202061312},
    {"qwen3-8b", 6945767424ll, 622329856, 308224, 16381470720ll, 9435704304ll, 6098479104ll, 147456, 73728, 1246101504},
    {"qwen3-14b", 13212057600ll, 777912320, 424960, 29536614400ll, 16324557920ll, 9976576000ll, 163840, 81920, 1317404672},
    {"qwen3-32b", 31205621760ll, 777912320, 676864, 65524246528ll, 34318626560ll, 19325298688ll, 262144, 131072, 1418067968},
    {"llama-3.1-8b", 6979321856ll, 525336576, 266240, 16060522496ll, 9081201536ll, 5727854592ll, 131072, 65536, 1247019008},
    {"llama-3.3-70b", 68451041280ll, 1050673152, 1318912, 141107412992ll, 72656373952ll, 39767785472ll, 327680, 163840, 1456734208},
};

TEST(Plan, WeightsCacheAndReserveOfEveryShape) {
  for (const Model& m : kModels) {
    SCOPED_TRACE(m.shape);
    const Shape& s = shape_named(m.shape).shape;
    EXPECT_EQ(s.linear_params(), m.linear);
    EXPECT_EQ(s.embedding_params(), m.embedding);
    EXPECT_EQ(s.norm_params(), m.norm);
    EXPECT_EQ(stored_weights(s, format_named("bf16")).resident, m.bf16);
    EXPECT_EQ(stored_weights(s, format_named("fp8")).resident, m.fp8);
    EXPECT_EQ(stored_weights(s, format_named("awq")).resident, m.w4z);
    EXPECT_EQ(kv_bytes_per_token(s, 16), m.kv_bf16);
    EXPECT_EQ(kv_bytes_per_token(s, 8), m.kv_fp8);
    const Plan p = make_plan(input(m.shape, "bf16", 16, 8192, 1, "b200"));
    EXPECT_EQ(p.context + p.workspace + p.graphs, m.reserve);
  }
}

TEST(Plan, BytesOfOneMatrixInEveryFormat) {
  const std::pair<const char*, std::int64_t> expected[] = {
      {"bf16", 33554432}, {"fp8_per_tensor", 16777220}, {"fp8_per_channel", 16793600}, {"fp8_per_block", 16781312}, {"gptq8", 17039360},
      {"int8_per_channel_weight_only", 16785408}, {"gptq", 8650752}, {"gptq-g64", 8912896}, {"gptq-g32", 9437184}, {"awq", 8716288}, {"gptq3", 6553600},
      {"nf4", 9437184}, {"nf4-nested", 8654848}, {"mxfp8", 17301504}, {"mxfp4", 8912896}, {"nvfp4", 9437188}, {"gguf:Q4_0", 9437184}, {"gguf:Q8_0", 17825792},
      {"gguf:q4_k", 9437184}, {"gguf:Q6_K", 13762560}};
  for (const auto& [format, bytes] : expected) EXPECT_EQ(format_named(format).bytes(4096, 4096), bytes) << format;
  // The last group of a row and the last block of a matrix may be short, and still have their scales.
  EXPECT_EQ(format_named("gptq").bytes(10, 200), 10 * 200 / 2 + 2 * 10 * 2);
  EXPECT_EQ(format_named("fp8_per_block").bytes(130, 200), 130 * 200 + 4 * 2 * 2);
}

struct Crossing {
  const char* shape;
  std::int64_t w4z, w4;
};

constexpr Crossing kCrossings[] = {
    {"qwen3-0.6b", 3690, 3720},
    {"qwen3-1.7b", 11808, 11904},
    {"qwen3-4b", 23677, 23870},
    {"qwen3-8b", 45264, 45632},
    {"qwen3-14b", 77490, 78120},
    {"qwen3-32b", 114390, 115320},
    {"llama-3.1-8b", 51168, 51584},
    {"llama-3.3-70b", 200736, 202368},
};

TEST(Plan, FourBitsWithAWideCacheLoseToFp8FromTheCrossoverOn) {
  for (const Crossing& c : kCrossings) {
    SCOPED_TRACE(c.shape);
    const Shape& s = shape_named(c.shape).shape;
    const std::int64_t fp8 = stored_weights(s, format_named("fp8")).resident, wide = kv_bytes_per_token(s, 16), narrow = kv_bytes_per_token(s, 8);
    for (const auto& [format, tokens] : {std::pair("awq", c.w4z), std::pair("gptq", c.w4)}) {
      const std::int64_t four = stored_weights(s, format_named(format)).resident;
      const auto at = crossover(four, wide, fp8, narrow);
      ASSERT_TRUE(at);
      EXPECT_EQ(*at, tokens) << format;
      EXPECT_LE(four + *at * wide, fp8 + *at * narrow);
      EXPECT_GT(four + (*at + 1) * wide, fp8 + (*at + 1) * narrow);
      EXPECT_FALSE(crossover(fp8, narrow, four, wide));  // the other way round they never cross
    }
  }
}

struct Smallest {
  const char* shape;
  double bf16, fp8, w4z;
};

constexpr Smallest kSmallest[] = {
    {"qwen3-0.6b", 3.28, 2.36, 2.62},
    {"qwen3-1.7b", 5.60, 3.70, 3.49},
    {"qwen3-4b", 10.58, 6.29, 5.14},
    {"qwen3-8b", 19.07, 11.42, 8.66},
    {"qwen3-14b", 32.59, 18.54, 12.79},
    {"qwen3-32b", 69.94, 37.26, 23.17},
    {"llama-3.1-8b", 18.61, 11.00, 8.15},
    {"llama-3.3-70b", 147.04, 76.38, 44.45},
};

TEST(Plan, MemoryThatACardMustReport) {
  for (const Smallest& m : kSmallest) {
    SCOPED_TRACE(m.shape);
    for (const auto& [format, bits, gib] : {std::tuple("bf16", 16, m.bf16), std::tuple("fp8", 8, m.fp8), std::tuple("awq", 16, m.w4z)}) {
      PlanInput in = input(m.shape, format, bits, 8192, 1, "b200");
      const std::int64_t need = memory_needed(in);
      EXPECT_NEAR(static_cast<double>(need) / 0x1p30, gib, 0.0051) << format;
      in.card.memory_bytes = need;
      EXPECT_TRUE(make_plan(in).fits);
      in.card.memory_bytes = need - 2;
      EXPECT_FALSE(make_plan(in).fits);
    }
  }
}

TEST(Plan, NearMissesFallOnTheirSide) {
  EXPECT_FALSE(make_plan(input("qwen3-14b", "bf16", 16, 8192, 1, "rtx5090")).fits);
  EXPECT_FALSE(make_plan(input("llama-3.3-70b", "awq", 16, 8192, 1, "l40s")).fits);
  EXPECT_TRUE(make_plan(input("llama-3.3-70b", "awq", 16, 8192, 1, "a6000")).fits);
  EXPECT_TRUE(make_plan(input("qwen3-32b", "awq", 16, 8192, 1, "rtx4090")).fits);
  PlanInput h200 = input("llama-3.3-70b", "bf16", 16, 8192, 1, "h200");
  h200.utilization = 0.967;
  EXPECT_FALSE(make_plan(h200).fits);
  h200.utilization = 0.968;
  EXPECT_TRUE(make_plan(h200).fits);
}

TEST(Plan, BudgetWithMeasuredReserves) {
  PlanInput in = input("qwen3-4b", "awq", 16, 8192, 1, "ada-8gb-laptop");
  in.card.memory_bytes = 8585740288;
  in.max_model_len = 8192;
  in.max_num_seqs = in.max_num_batched_tokens = 0;  // the workspace is given as a whole
  in.reserve = {314572800, 268435456, 134217728};
  const Plan p = make_plan(in);
  EXPECT_EQ(p.requested, 7898881065);
  EXPECT_EQ(p.kv_available, 4515729449);
  EXPECT_EQ(p.load_temp, 25876480);
  EXPECT_EQ(p.load_peak, 3006374912);
  EXPECT_EQ(p.blocks, 1914);
  EXPECT_EQ(p.tokens, 30624);
  EXPECT_NEAR(p.max_concurrency, 3.74, 0.005);
  EXPECT_EQ(read_bytes(in, 1, 384), 2722553856);
  EXPECT_NEAR(ceiling(in, 1, 384).tok_s, 94.0, 0.05);
  EXPECT_EQ(in.shape.params(), 4022468096);
}

TEST(Plan, ExpertsAreAllResidentAndSomeRead) {
  PlanInput in = input("qwen3-30b-a3b", "bf16", 16, 0, 1, "h200");
  EXPECT_EQ(in.shape.params(), 30532122624);
  EXPECT_EQ(in.weights.resident, 61064245248);
  EXPECT_EQ(read_bytes(in, 1, 0), 6083739648);
  in.weights = stored_weights(in.shape, format_named("awq"));
  EXPECT_EQ(in.weights.resident, 16802672640);
  EXPECT_EQ(read_bytes(in, 1, 0), 2059960320);
  EXPECT_EQ(in.kv_bytes_per_token, 98304);
}

TEST(Plan, SmolLm2Cache) {
  const Shape& s = shape_named("smollm2-135m").shape;
  EXPECT_EQ(kv_bytes_per_token(s, 16), 23040);
  EXPECT_EQ(kv_bytes_per_token(s, 8), 11520);
}

TEST(Plan, MoreOfAnythingNeverLeavesMoreRoom) {
  for (const KnownShape& k : known_shapes()) {
    if (k.shape.experts) continue;
    SCOPED_TRACE(k.shape.name);
    const PlanInput in = input(k.shape.name.c_str(), "awq", 16, 1000, 2, "h200");
    const Plan p = make_plan(in);
    PlanInput more = in;
    more.max_num_seqs = 300;
    EXPECT_LE(make_plan(more).tokens, p.tokens);
    more = in;
    more.max_num_batched_tokens = 4096;
    EXPECT_LE(make_plan(more).tokens, p.tokens);
    more = in;
    more.kv_bytes_per_token *= 2;
    EXPECT_LE(std::abs(make_plan(more).tokens * 2 - p.tokens), 32);
    more = in;
    more.concurrency = 3;
    EXPECT_GT(make_plan(more).blocks_needed, p.blocks_needed);
    EXPECT_LT(in.weights.resident, stored_weights(k.shape, format_named("fp8")).resident);
    EXPECT_LT(stored_weights(k.shape, format_named("fp8")).resident, stored_weights(k.shape, format_named("bf16")).resident);
    // What is missing is enough: a card with that much more holds it.
    PlanInput tight = in;
    tight.card.memory_bytes = memory_needed(in) - (200ll << 20);
    const Plan no = make_plan(tight);
    ASSERT_FALSE(no.fits);
    tight.card.memory_bytes += static_cast<std::int64_t>(std::ceil(static_cast<double>(no.short_bytes) / 0.92)) + 1;
    EXPECT_TRUE(make_plan(tight).fits);
  }
}

TEST(Plan, SlidingWindowsReadNoFurtherBack) {
  PlanInput in = input("qwen3-4b", "bf16", 16, 8192, 1, "h200");
  const std::int64_t full = read_bytes(in, 1, 8192), base = read_bytes(in, 1, 0);
  in.shape.window.assign(36, 0);
  EXPECT_EQ(read_bytes(in, 1, 8192), full);
  for (std::size_t i = 0; i < 36; i += 2) in.shape.window[i] = 4096;
  EXPECT_EQ(read_bytes(in, 1, 8192) - base, (full - base) * 3 / 4);
}

TEST(Plan, AHeadOfEightBitsIsAddedToATiedTableAndReplacesAnUntiedOne) {
  const Shape& tied = shape_named("qwen3-4b").shape;
  const WeightFormat& f = format_named("awq");
  EXPECT_EQ(stored_weights(tied, f, HeadFormat::kFp8).resident, stored_weights(tied, f).resident + tied.embedding_params() + 4);
  const Shape& untied = shape_named("qwen3-8b").shape;
  EXPECT_EQ(stored_weights(untied, f, HeadFormat::kInt8).resident, stored_weights(untied, f).resident - untied.embedding_params() + 2 * untied.vocab);
}

TEST(PlanTables, CardsFromNamesAndNumbers) {
  const auto cards = parse_cards("h200,sm=89,mem=8188MiB,bw=256GB/s,rtx4090,sm=120,mem=16GB,bw=0.9TB/s,name=mine,sm=80,mem=1GiB,bw=1");
  ASSERT_EQ(cards.size(), 5u);
  EXPECT_EQ(cards[0].memory_bytes, 150109106995);
  EXPECT_EQ(cards[1].memory_bytes, 8585740288);
  EXPECT_EQ(cards[1].bandwidth, 256000000000);
  EXPECT_TRUE(cards[1].fp8);
  EXPECT_FALSE(cards[1].fp4);
  EXPECT_EQ(cards[2].name, "rtx4090");
  EXPECT_EQ(cards[3].name, "mine");
  EXPECT_EQ(cards[3].memory_bytes, 16000000000);
  EXPECT_EQ(cards[3].bandwidth, 900000000000);
  EXPECT_FALSE(cards[4].fp8);
  for (const char* bad : {"", "h2000", "sm=89", "sm=89,mem=8GB", "mem=8GB,bw=0", "sm=8.9,mem=1GB,bw=1GB/s", "mem=-1GB,bw=1GB/s", "mem=1e300GB,bw=1GB/s", "mem=nanGB,bw=1GB/s", "h200,,b200", "colour=red"})
    EXPECT_THROW(parse_cards(bad), Error) << bad;
}

TEST(PlanTables, UnknownNamesNameTheNearest) {
  try {
    shape_named("qwen3-8");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), "E101");
    EXPECT_NE(std::string(e.what()).find("did you mean qwen3-8b?"), std::string::npos);
  }
  EXPECT_THROW(format_named("int5"), Error);
}

TEST(PlanPlot, EveryArmAndCardIsNamedAndEscaped) {
  const std::string svg = plot_svg("a & b", {{"one <1>", {{2048, 1.0}, {4096, 2.0}}}, {"two", {{2048, 1.5}, {4096, 1.75}}}}, {{"card", 1.8}, {"huge", 80}});
  for (const char* part : {"a &amp; b", "one &lt;1&gt;", "two", "card", "huge (above)", ">2k<", ">4k<"}) EXPECT_NE(svg.find(part), std::string::npos) << part;
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

}  // namespace
}  // namespace qengine
