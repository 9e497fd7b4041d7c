// The container alone, on bytes made here: what a writer may do, and what must be refused.
#include "core/model/safetensors.hpp"

#include <gtest/gtest.h>
#include <qe/plugin.h>

#include "core/base/error.hpp"
#include "tests/support/files.hpp"

namespace qengine {
namespace {

using test::safetensors;

SafetensorsFile parse(const std::string& bytes) {
  return parse_safetensors(FileBytes::borrow("x.safetensors", std::as_bytes(std::span(bytes))));
}
std::string complaint(const std::string& bytes) {
  try {
    parse(bytes);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), "E207");
    EXPECT_EQ(e.find("in"), "x.safetensors");
    return e.message();
  }
  return "accepted";
}
std::string entry(const std::string& name, const std::string& dtype, const std::string& shape, int begin, int end) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":[" + std::to_string(begin) +
         "," + std::to_string(end) + "]}";
}

TEST(Safetensors, TheFormatsOwnExample) {
  const std::string bytes = safetensors("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}  ", std::string(8, '\0'));
  ASSERT_EQ(bytes.size(), 72u);
  const SafetensorsFile file = parse(bytes);
  ASSERT_EQ(file.tensors.size(), 1u);
  EXPECT_EQ(file.tensors[0].name, "a");
  EXPECT_EQ(file.tensors[0].dtype, QE_F32);
  EXPECT_EQ(file.tensors[0].shape, std::vector<std::int64_t>{2});
  EXPECT_EQ(file.tensors[0].offset, 64u);
  EXPECT_EQ(file.tensors[0].bytes, 8u);
}

TEST(Safetensors, OrderInTheHeaderIsFreeAndDataMayBeginAnywhere) {
  // 2 bytes of padding in front, an odd header length, tensors listed backwards, a scalar, an empty one.
  const std::string header = " \n{" + entry("b", "U8", "[3]", 4, 7) + "," + entry("empty", "F32", "[0,5]", 4, 4) + "," +
                             entry("a", "F32", "[]", 0, 4) + ",\"__metadata__\":{\"format\":\"pt\"}}";
  const SafetensorsFile file = parse(safetensors(header, std::string(7, '\0')));
  ASSERT_EQ(file.tensors.size(), 3u);
  EXPECT_EQ(file.tensors[0].name, "a");
  EXPECT_EQ(file.tensors[0].bytes, 4u);
  EXPECT_EQ(file.tensors[1].name, "empty");
  EXPECT_EQ(file.tensors[2].offset, 8 + header.size() + 4);
  EXPECT_EQ(file.format, "pt");
}

TEST(Safetensors, NoTensorAtAllIsAFile) { EXPECT_TRUE(parse(safetensors("{}", "")).tensors.empty()); }

TEST(Safetensors, EveryDtypeHasItsWidth) {
  const std::pair<const char*, int> types[] = {
      {"BOOL", 8}, {"U8", 8}, {"I8", 8}, {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8},
      {"I16", 16}, {"U16", 16}, {"F16", 16}, {"BF16", 16}, {"I32", 32}, {"U32", 32}, {"F32", 32}, {"I64", 64}, {"U64", 64},
      {"F64", 64}, {"C64", 64}, {"F4", 4}, {"F6_E2M3", 6}, {"F6_E3M2", 6}};
  for (const auto& [name, bits] : types) {
    const SafetensorsFile file = parse(safetensors("{" + entry("a", name, "[2,4]", 0, bits) + "}", std::string(static_cast<std::size_t>(bits), '\0')));
    ASSERT_EQ(file.tensors.size(), 1u) << name;
    EXPECT_EQ(dtype_name(file.tensors[0].dtype), name);
  }
  EXPECT_NE(complaint(safetensors("{" + entry("a", "F4", "[3]", 0, 1) + "}", "x")).find("no whole number of bytes"), std::string::npos);
}

TEST(Safetensors, UnknownFieldsOfAnEntryAreSkipped) {
  const std::string header = R"({"a":{"dtype":"U8","note":{"x":[1]},"shape":[1],"n":null,"data_offsets":[0,1]}})";
  EXPECT_EQ(parse(safetensors(header, "x")).tensors.size(), 1u);
  const std::string deep = R"({"a":{"dtype":"U8","note":{"x":[[1]]},"shape":[1],"data_offsets":[0,1]}})";
  EXPECT_NE(complaint(safetensors(deep, "x")).find("nested"), std::string::npos);
}

struct Bad {
  const char* header;
  const char* says;
};
TEST(Safetensors, EachFaultOfAHeaderIsNamed) {
  const Bad all[] = {
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"shape":[1]}})", "a has the key \"shape\" twice"},
      {R"({"a":{"dtype":"U8","shape":[1],"x":1,"data_offsets":[0,1],"x":1}})", "a has the key \"x\" twice"},
      {R"({"__metadata__":{"k":"1","k":"2"},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "__metadata__ has the key \"k\" twice"},
      {R"({"__metadata__":{"k":1},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "__metadata__.k is a number"},
      {R"({"__metadata__":{},"__metadata__":{},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "duplicate"},
      {R"({"a":{"dtype":"U8","shape":[1]}})", "a lacks dtype, shape or data_offsets"},
      {R"({"a":{"shape":[1],"data_offsets":[0,1]}})", "a lacks"},
      {R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", "a lacks"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", "a lacks"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}})", "a has unusable data_offsets"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,-1]}})", "a has unusable data_offsets"},
      {R"({"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}})", "a has the size 1.0 in its shape"},
      {R"({"a":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1]}})", "a has the size 9223372036854775808"},
      {R"({"a":{"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,1]}})", "a has the size 99999999999999999999"},
      {R"({"a":{"dtype":"U8","shape":1,"data_offsets":[0,1]}})", "a has a number in \"shape\""},
      {R"({"a":{"dtype":8,"shape":[1],"data_offsets":[0,1]}})", "a has a number in \"dtype\""},
      {R"({"a":{"dtype":"U8","shape":[[1]],"data_offsets":[0,1]}})", "a has an array in \"shape\""},
      {R"({"a":{"dtype":"U8","shape":["1"],"data_offsets":[0,1]}})", "a has a string in \"shape\""},
      {R"({"a":7})", "a is a number"},
      {R"({"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "empty name"},
      {R"({"a\u0007":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "a\\x07 has a control character"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}} x)", "not valid JSON"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}},{})", "not valid JSON"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}\n", "not valid JSON"},
      {"\xef\xbb\xbf{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", "not a JSON object"},
      {"\"a\"", "not a JSON object"},
      {"      ", "not a JSON object"},
  };
  for (const Bad& bad : all)
    EXPECT_NE(complaint(safetensors(bad.header, "x")).find(bad.says), std::string::npos)
        << bad.header << "\n  " << complaint(safetensors(bad.header, "x"));
}

TEST(Safetensors, NulEndsNothing) {
  const std::string good = "{" + entry("a", "U8", "[1]", 0, 1) + "}";
  EXPECT_NE(complaint(safetensors(good + std::string(1, '\0') + "}", "x")).find("NUL"), std::string::npos);
}

TEST(Safetensors, LongNamesAreCutInTheText) {
  const std::string name(2000, 'n');
  const std::string text = complaint(safetensors("{" + entry(name, "U8", "[1]", 0, 1) + "}", "x"));
  EXPECT_NE(text.find("2000 bytes"), std::string::npos);
  EXPECT_LT(text.size(), 400u);
}

TEST(Safetensors, RangesCoverTheDataExactly) {
  const auto two = [](int a, int b, int c, int d, const char* data) {
    return complaint(safetensors("{" + entry("p", "U8", "[" + std::to_string(b - a) + "]", a, b) + "," +
                                     entry("q", "U8", "[" + std::to_string(d - c) + "]", c, d) + "}", data));
  };
  EXPECT_EQ(two(0, 2, 2, 4, "abcd"), "accepted");
  EXPECT_NE(two(0, 2, 1, 3, "abc").find("q begins at byte 1 of the data, inside"), std::string::npos);
  EXPECT_NE(two(0, 1, 2, 4, "abcd").find("hole"), std::string::npos);
  EXPECT_NE(two(1, 2, 2, 4, "abcd").find("p begins at byte 1"), std::string::npos);
  EXPECT_NE(two(0, 2, 2, 4, "abcde").find("1 bytes after the last tensor"), std::string::npos);
  EXPECT_NE(two(0, 2, 2, 4, "abc").find("q goes beyond the end"), std::string::npos);
}

}  // namespace
}  // namespace qengine
