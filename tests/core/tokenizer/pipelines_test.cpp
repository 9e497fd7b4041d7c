// Every kind of normalizer, pre-tokenizer, decoder and post-processor, against ids and texts that the
// library which defines them made (tests/golden/pipelines).
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/core/tokenizer/golden_files.hpp"

namespace qengine {
namespace {

std::vector<std::string> kinds() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(test::golden() / "pipelines")) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

class Pipelines : public testing::TestWithParam<std::string> {};

TEST_P(Pipelines, GiveTheSameIdsAndTexts) {
  const auto folder = test::golden() / "pipelines" / GetParam();
  const auto tokenizer = Tokenizer::load(folder);
  const Json golden = test::read_json(folder / "cases.json");
  ASSERT_GT(golden["cases"].size(), 100u);
  for (const Json& c : golden["cases"]) {
    const std::string text = c["text"].get<std::string>();
    const auto ids = c["ids"].get<std::vector<std::int32_t>>();
    const auto special = c.value("ids_with_special", c["ids"]).get<std::vector<std::int32_t>>();
    EXPECT_EQ(tokenizer->encode(text, false), ids) << text;
    EXPECT_EQ(tokenizer->encode(text, true), special) << text;
    EXPECT_EQ(tokenizer->decode(ids, false), c["decoded"].get<std::string>()) << text;
    EXPECT_EQ(tokenizer->decode(special, true), c["decoded_skip_special"].get<std::string>()) << text;
  }
}

// Decoded whole, one by one, and from the bytes of each token: one text.
TEST_P(Pipelines, StreamAndWholeAreOne) {
  const auto folder = test::golden() / "pipelines" / GetParam();
  const auto tokenizer = Tokenizer::load(folder);
  for (const Json& c : test::read_json(folder / "cases.json")["cases"]) {
    const auto ids = c["ids"].get<std::vector<std::int32_t>>();
    StreamDecoder stream(tokenizer, false);
    std::string text;
    for (const std::int32_t id : ids) text += stream.push(id);
    EXPECT_EQ(text + stream.flush(), tokenizer->decode(ids, false));
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Pipelines, testing::ValuesIn(kinds()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace qengine
