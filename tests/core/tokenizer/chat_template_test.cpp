// Templates against Python's Jinja (tests/golden/templates), and the bounds of untrusted ones.
#include "core/tokenizer/chat_template.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "core/base/error.hpp"
#include "tests/core/tokenizer/golden_files.hpp"

namespace qengine {
namespace {

const Json kHello = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}};

std::string render(const std::string& source, const Json& variables = kHello) { return ChatTemplate(source).render(variables); }

std::string failure(const std::string& source, const Json& variables = kHello) {
  try {
    render(source, variables);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), "E504");
    return e.what();
  }
  return "rendered";
}

TEST(ChatTemplate, RendersAsPythonsJinjaDoes) {
  const Json golden = test::read_json(test::golden() / "templates/cases.json");
  ASSERT_GT(golden["cases"].size(), 150u);
  for (const Json& c : golden["cases"]) {
    const std::string source = c["template"].get<std::string>();
    if (c.contains("error")) {
      EXPECT_NE(failure(source, golden["context"]), "rendered") << source << "\n" << c["error"];
      continue;
    }
    try {
      EXPECT_EQ(render(source, golden["context"]), c["text"].get<std::string>()) << source;
    } catch (const Error& e) {
      ADD_FAILURE() << source << "\n" << e.what();
    }
  }
}

TEST(ChatTemplate, TokensAndDefaultsAreThere) {
  EXPECT_EQ(ChatTemplate("{{ bos_token }}|{{ eos_token }}|{{ tools is none }}|{{ add_generation_prompt }}", "<s>", "</s>").render(kHello), "<s>|</s>|True|False");
  EXPECT_EQ(render("{{ bos_token is defined }}{{ enable_thinking is defined }}"), "FalseFalse");
  Json with = kHello;
  with["enable_thinking"] = false;
  EXPECT_EQ(render("{{ enable_thinking }}", with), "False");
}

TEST(ChatTemplate, RaisedWordsReachTheReader) { EXPECT_EQ(failure("{{ raise_exception('roles must alternate') }}"), "E504 the chat template refuses these messages: roles must alternate"); }

TEST(ChatTemplate, ErrorsSayWhere) {
  EXPECT_NE(failure("a\n b {{ messages[0].x.y }}").find("line 2, column 20: 'dict object' has no attribute 'x'"), std::string::npos) << failure("a\n b {{ messages[0].x.y }}");
  EXPECT_NE(failure("a\n{% for m in messages %}").find("line 2"), std::string::npos);
  EXPECT_NE(failure("{{ 'x' | frob }}").find("'frob'"), std::string::npos);
  EXPECT_NE(failure("{% include 'x' %}").find("include"), std::string::npos);
  EXPECT_NE(failure("{{ x", kHello).find("line 1, column 1"), std::string::npos);
}

TEST(ChatTemplate, NoMessagesIsAnError) {
  EXPECT_NE(failure("x", Json::object()), "rendered");
  EXPECT_NE(failure("x", {{"messages", Json::array()}}), "rendered");
  EXPECT_NE(failure("x", {{"messages", 3}}), "rendered");
}

// Each of these would take the memory or the time of the machine.
TEST(ChatTemplate, EndlessTemplatesEnd) {
  const auto before = std::chrono::steady_clock::now();
  const std::string deep(5000, '('), dashes = std::string(5000, '-');
  std::string chain = "1", nested;
  for (int i = 0; i < 3000; ++i) chain += "+1";
  for (int i = 0; i < 3000; ++i) nested += "{% if true %}";
  for (const std::string& source : std::vector<std::string>{
           "{% for i in range(1000000000) %}{% for j in range(1000000000) %}x{% endfor %}{% endfor %}",
           "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
           "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
           "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
           "{{ 'x' * 1000000000 }}", "{{ [0] * 1000000000 }}", "{{ 'x'.ljust(1000000000) }}", "{{ 'x'|center(1000000000) }}", "{{ 'a'|indent(1000000000) }}",
           "{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
           "{% set ns = namespace(l=[1]) %}{% for i in range(100) %}{% set ns.l = ns.l + ns.l %}{% endfor %}{{ ns.l }}",
           "{% set ns = namespace(l=[1]) %}{% for i in range(100) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
           "{% set ns = namespace(l=[1]) %}{% for i in range(100000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
           "{% for i in range(2000) %}{{ 'x' * 1000 }}{% endfor %}",
           "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s|replace('', 'ab') %}{% endfor %}",
           "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
           "{{ '%1000000000d' % 1 }}", "{{ 9999999999 ** 9 }}", "{{ range(99999999999)|list|length }}", "{{ range(99999999999)|sum }}",
           "{{ [1]|tojson(indent=1000000000) }}", "{{ ([[[[1]]]]|tojson(indent=60)) * 100000 }}",
           "{{ " + deep + "1", "{{ " + dashes + "1 }}", "{{ " + chain + " }}", nested, "{% macro m(x) %}{{ x() }}{% endmacro %}{{ m(m) }}",
           "{% set ns = namespace() %}{% set ns.ns = ns %}{% for i in range(10000000) %}{% set ns.x = ns.ns %}{% endfor %}"})
    EXPECT_NE(failure(source), "rendered") << source.substr(0, 100);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - before;
#ifndef __SANITIZE_ADDRESS__
  EXPECT_LT(taken.count(), 20);
#endif
}

TEST(ChatTemplate, DeepMessagesAreRefusedAndLargeOnesRender) {
  Json deep = "x";
  for (int i = 0; i < 150; ++i) deep = Json::array({deep});
  Json variables = kHello;
  variables["extra"] = deep;
  EXPECT_NE(failure("x", variables), "rendered");
  variables = {{"messages", {{{"role", "user"}, {"content", std::string(900'000, 'x')}}}}};
  EXPECT_EQ(render("{% for m in messages %}{{ '<' + m.role + '>' + m.content + '\\n' }}{% endfor %}", variables).size(), 900'007u);
  variables["messages"][0]["content"] = std::string(1'100'000, 'x');
  EXPECT_NE(failure("{{ messages[0].content }}", variables).find("longer than"), std::string::npos);
}

TEST(ChatTemplate, OneTemplateServesManyThreads) {
  const ChatTemplate shared("{% set ns = namespace(n=0) %}{% for i in range(100) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}{{ messages[0].content }}");
  std::vector<std::thread> threads;
  std::vector<std::string> results(8);
  for (std::size_t t = 0; t < results.size(); ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) results[t] = shared.render({{"messages", {{{"role", "user"}, {"content", std::to_string(t)}}}}});
    });
  for (auto& t : threads) t.join();
  for (std::size_t t = 0; t < results.size(); ++t) EXPECT_EQ(results[t], "4950" + std::to_string(t));
}

TEST(ChatTemplate, StrftimeNowIsToday) {
  const std::string year = render("{{ strftime_now('%Y') }}");
  EXPECT_EQ(year.size(), 4u);
  EXPECT_GE(std::stoi(year), 2024);
}

}  // namespace
}  // namespace qengine
