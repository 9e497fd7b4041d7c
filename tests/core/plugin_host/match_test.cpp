#include "core/plugin_host/match.hpp"

#include <gtest/gtest.h>

#include <ctime>

namespace qengine {
namespace {

struct Case {
  const char *pattern, *name;
  bool hit;
};

TEST(Match, RulesOfEveryDialectNameTheSameModules) {
  const char* q0 = "model.layers.0.self_attn.q_proj";
  const Case cases[] = {
      {"lm_head", "lm_head", true},
      {"lm_head", "model.lm_head", true},
      {"lm_hea", "lm_head", false},
      {"model.layers.0.self_attn.q_proj", q0, true},
      {"layers.0.self_attn.q_proj", q0, true},
      {"language_model.model.layers.0.self_attn.q_proj", q0, true},
      {"model.language_model.layers.0.self_attn.q_proj", q0, true},
      {"model.layers.0.self_attn", q0, false},  // exact is exact
      {"model.layers.10.self_attn.q_proj", q0, false},
      {"q_proj", q0, false},
      {"*q_proj", q0, true},
      {"*.self_attn.*", q0, true},
      {"model.layers.?.self_attn.*", q0, true},
      {"layers.?.self_attn.*", q0, true},
      {"model.layers.[0-3].*", q0, true},
      {"model.layers.[!0-3].*", q0, false},
      {"model.layers.[12].*", q0, false},
      {"*", q0, true},
      {"*[", "a[", true},  // an unclosed bracket is a letter
      {"a*b*c", "aXbXc", true},
      {"a*b*c", "aXbX", false},
      {"", q0, false},
      {"re:.*q_proj", q0, true},
      {"re:.*q_pro", q0, true},       // anchored at the start only
      {"re:q_proj", q0, false},
      {"re:.*q_pro$", q0, false},
      {"re:model\\.layers\\.0\\..*", q0, true},
      {"re:layers\\.0\\..*", q0, true},
      {"re:language_model\\.model\\.layers\\.0\\.", q0, true},
      {"re:model\\.language_model\\.layers\\.0\\.", q0, true},
      {"re:.*\\.(?!k)[a-z]_proj$", q0, true},  // look-ahead, as Python rules have it
      {"re:.*\\.(?!q)[a-z]_proj$", q0, false},
      {"re:(?i).*Q_PROJ", q0, true},
  };
  const Matcher m;
  for (const Case& c : cases) {
    std::string problem;
    EXPECT_EQ(m.matches(c.pattern, c.name, &problem), c.hit) << c.pattern << " on " << c.name;
    EXPECT_EQ(problem, "") << c.pattern;
  }
}

// Engines compute q, k, v and gate, up as one, and some rules were written for those names.
TEST(Match, ARuleForAFusedMatrixMeansItsParts) {
  const std::string attention = "model.layers.0.self_attn.", mlp = "model.layers.0.mlp.";
  const Case cases[] = {
      {"re:.*qkv_proj", "q_proj", true},
      {"re:.*\\.self_attn\\.qkv_proj$", "v_proj", true},
      {"model.layers.0.self_attn.qkv_proj", "k_proj", true},
      {"layers.0.self_attn.qkv_proj", "k_proj", true},
      {"*.qkv_proj", "q_proj", true},
      {"*.qkv_proj", "o_proj", false},
      {"model.layers.1.self_attn.qkv_proj", "q_proj", false},
      {"re:.*v_proj", "q_proj", false},  // fits the text qkv_proj, and means v_proj
      {"*v_proj", "k_proj", false},
      {"re:.*(qkv_proj|down_proj)", "k_proj", true},
      {"re:.*(qkv_proj|down_proj)", "o_proj", false},
      {"re:([qkv_proj", "q_proj", false},
  };
  const Matcher m;
  for (const Case& c : cases) EXPECT_EQ(m.matches(c.pattern, attention + c.name), c.hit) << c.pattern << " on " << c.name;
  for (const char* part : {"gate_proj", "up_proj"}) {
    EXPECT_TRUE(m.matches("re:.*gate_up_proj", mlp + part));
    EXPECT_FALSE(m.matches("re:.*qkv_proj", mlp + part));
  }
  EXPECT_FALSE(m.matches("*up_proj", mlp + "gate_proj"));
  EXPECT_FALSE(m.matches("re:.*gate_up_proj", mlp + "down_proj"));
}

TEST(Match, ABadPatternSaysWhatIsWrongWithIt) {
  const Matcher m;
  for (int again = 0; again < 2; ++again) {  // also when it is remembered
    std::string problem;
    EXPECT_FALSE(m.matches("re:([", "lm_head", &problem));
    EXPECT_NE(problem.find("missing terminating ]"), std::string::npos) << problem;
  }
  std::string problem;
  EXPECT_FALSE(m.matches("re:" + std::string(5000, 'a'), "lm_head", &problem));
  EXPECT_NE(problem, "");
  EXPECT_FALSE(m.matches("re:([", "lm_head"));
}

TEST(Match, AHostilePatternEndsSoon) {
  const Matcher m;
  const std::string name(800, 'a');
  const std::clock_t begin = std::clock();  // processor time: other work on the machine does not count
  for (const char* pattern : {"re:(a+)+$b", "re:(a|a)*b", "re:((a*)*)*b", "re:(.*)(.*)(.*)(.*)(.*)(.*)b", "*a*a*a*a*a*a*a*a*a*b"}) {
    std::string problem;
    EXPECT_FALSE(m.matches(pattern, name, &problem)) << pattern;
  }
  EXPECT_LT(std::clock() - begin, 2 * CLOCKS_PER_SEC);
}

TEST(Match, NamesThatAreNotTextAreNoMatchAndNoCrash) {
  const Matcher m;
  std::string problem;
  EXPECT_FALSE(m.matches("re:.*", "\xff\xfe", &problem));
  EXPECT_FALSE(m.matches("re:\xff", "a", &problem));
  EXPECT_TRUE(m.matches("*", "\xff"));
  EXPECT_FALSE(m.matches("*", std::string(5000, 'x')));
}

}  // namespace
}  // namespace qengine
