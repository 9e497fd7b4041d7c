#include "core/model/safetensors_writer.hpp"

#include <gtest/gtest.h>

#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>

#include "core/base/error.hpp"
#include "core/model/checkpoint.hpp"

namespace qengine {
namespace {

namespace fs = std::filesystem;

class SafetensorsWriterFile : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) / ("st_" + std::to_string(::getpid()) + ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::size_t files() const { return std::distance(fs::directory_iterator(folder_), {}); }
  fs::path folder_;
};

// Read back with the project's own reader: names, shapes and every byte.
TEST_F(SafetensorsWriterFile, HoldsWhatWasWrittenInPiecesOfAnySize) {
  const std::vector<float> a{1, -2, 3.5f, 4, 5, 6}, b{7};
  {
    SafetensorsWriter w(folder_ / "model.safetensors", {{"a", "F32", {2, 3}}, {"empty", "F32", {0, 4}}, {"b", "F32", {1}}}, {{"format", "pt"}});
    const auto bytes = std::as_bytes(std::span(a));
    w.write(bytes.first(5));
    w.write(bytes.subspan(5));
    w.write(b);
    EXPECT_EQ(w.bytes_left(), 0u);
    w.finish();
  }
  EXPECT_EQ(files(), 1u);
  std::ofstream(folder_ / "config.json") << R"({"architectures":["LlamaForCausalLM"],"model_type":"llama"})";
  const auto c = Checkpoint::open(folder_);
  const Tensor* t = c->find("a");
  ASSERT_TRUE(t);
  EXPECT_EQ(t->shape, (std::vector<std::int64_t>{2, 3}));
  ASSERT_EQ(c->data(*t).size(), 24u);
  EXPECT_EQ(std::memcmp(c->data(*t).data(), a.data(), 24), 0);
  EXPECT_EQ(t->offset % 64, 0u);
  ASSERT_TRUE(c->find("b"));
  EXPECT_EQ(std::memcmp(c->data(*c->find("b")).data(), b.data(), 4), 0);
}

TEST_F(SafetensorsWriterFile, LeavesNothingBehindWhenItIsNotFinished) {
  std::ofstream(folder_ / "old.safetensors") << "old";
  {
    SafetensorsWriter w(folder_ / "old.safetensors", {{"a", "F32", {2}}});
    w.write(std::vector<float>{1});
    EXPECT_THROW(w.finish(), Error);
  }
  EXPECT_EQ(files(), 1u);
  std::string text;
  std::ifstream(folder_ / "old.safetensors") >> text;
  EXPECT_EQ(text, "old");
}

TEST_F(SafetensorsWriterFile, RefusesMoreBytesThanAnnouncedAndTwoOfOneName) {
  SafetensorsWriter w(folder_ / "a.safetensors", {{"a", "F32", {1}}});
  EXPECT_THROW(w.write(std::vector<float>{1, 2}), Error);
  EXPECT_THROW(SafetensorsWriter(folder_ / "b.safetensors", {{"a", "F32", {1}}, {"a", "F32", {1}}}), Error);
}

TEST_F(SafetensorsWriterFile, NamesTheFileItCannotWrite) {
  try {
    SafetensorsWriter(folder_ / "no" / "a.safetensors", {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), "E108");
    EXPECT_NE(e.message().find("no/a.safetensors"), std::string::npos);
  }
}

TEST(Bf16FromFloat, RoundsToNearestEven) {
  const auto bits = [](std::uint32_t u) {
    float f;
    std::memcpy(&f, &u, 4);
    return f;
  };
  EXPECT_EQ(bf16_from_float(1.0f), 0x3f80);
  EXPECT_EQ(bf16_from_float(bits(0x3f808000)), 0x3f80);  // a tie, down to even
  EXPECT_EQ(bf16_from_float(bits(0x3f818000)), 0x3f82);  // a tie, up to even
  EXPECT_EQ(bf16_from_float(bits(0x3f808001)), 0x3f81);
  EXPECT_EQ(bf16_from_float(std::numeric_limits<float>::max()), 0x7f80);  // beyond the largest: infinity
  EXPECT_EQ(bf16_from_float(-std::numeric_limits<float>::infinity()), 0xff80);
  EXPECT_TRUE(std::isnan(bits(std::uint32_t{bf16_from_float(bits(0x7f800001))} << 16)));  // the payload's low bit must not vanish
}

}  // namespace
}  // namespace qengine
