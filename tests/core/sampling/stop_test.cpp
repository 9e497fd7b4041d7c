#include "core/sampling/stop.hpp"

#include <gtest/gtest.h>

#include <random>

namespace qengine {
namespace {

// Pieces in, shown text out, '|' between events; the stop that hit at the end.
std::string feed(std::vector<std::string> stops, const std::vector<std::string>& pieces, bool include = false, Prelude prelude = {}) {
  StopChecker s(std::move(stops), include, std::move(prelude));
  std::string out;
  for (const std::string& p : pieces) {
    const auto r = s.push(p);
    out += r.text + "|";
    if (r.stop) return out + "stop:" + *r.stop;
  }
  return out + s.flush();
}

TEST(StopChecker, AStopStringSplitOverPiecesNeverLeaks) {
  EXPECT_EQ(feed({"\n\nUser:"}, {"Hi", "\n", "\nUs", "er: next"}), "Hi||||stop:\n\nUser:");
  EXPECT_EQ(feed({"STOP"}, {"aS", "T", "OP b"}, true), "a||STOP|stop:STOP");
}

TEST(StopChecker, OnlyAPossibleBeginningIsHeldBack) {
  EXPECT_EQ(feed({"END"}, {"abcE", "x", "EN", "EN", "D"}), "abc|Ex||EN||stop:END");
  EXPECT_EQ(feed({"aab"}, {"a", "a", "a", "b"}), "||a||stop:aab");
  EXPECT_EQ(feed({"END"}, {"the E"}), "the |E");  // the end came otherwise
}

TEST(StopChecker, TheFirstToEndWins) {
  EXPECT_EQ(feed({"abcd", "bc"}, {"xabcd"}), "xa|stop:bc");
  EXPECT_EQ(feed({"c", "abc"}, {"xabc"}), "x|stop:abc");
}

TEST(StopChecker, CharactersOfSeveralBytesStayWhole) {
  EXPECT_EQ(feed({"é!"}, {"è", "é", "?"}), "è||é?|");
}

TEST(StopChecker, WhatCameBeforeMinTokensIsNoPartOfAStop) {
  StopChecker s({"ab"}, false);
  EXPECT_EQ(s.push("a", false).text, "a");
  EXPECT_EQ(s.push("b").stop, nullptr);
}

TEST(StopChecker, NothingStopsInAPrelude) {
  const Prelude think{"<t>", "</t>", false}, begun{"<t>", "</t>", true};
  EXPECT_EQ(feed({"END"}, {"<t>", "an END", "</", "t>b", " END"}, false, think), "<t>|an END||</t>b| |stop:END");
  EXPECT_EQ(feed({"END"}, {" \n<", "t>END</t>", "END"}, false, think), "| \n<t>END</t>||stop:END");
  EXPECT_EQ(feed({"END"}, {"an END</t>END"}, false, begun), "an END</t>|stop:END");
  EXPECT_EQ(feed({"END"}, {"<", "b END"}, false, think), "|<b |stop:END");     // it was none
  EXPECT_EQ(feed({">E"}, {"<t>x</t>", "E", ">E"}, false, think), "<t>x</t>|E||stop:>E");  // its close is no part of a stop
  EXPECT_EQ(feed({"END"}, {"<t>END", "</"}, false, think), "<t>END||</");      // the end came inside
  EXPECT_EQ(feed({"END"}, {"<"}, false, think), "|<");
  EXPECT_EQ(feed({}, {"<", "t>"}, false, think), "<|t>|");  // nothing to look for: nothing is held back
}

// Against the dumbest model: all text so far, searched from the start.
TEST(StopChecker, AnyCutGivesTheSameTextAndStop) {
  std::mt19937 rng(4);
  for (int round = 0; round < 4000; ++round) {
    std::string text;
    for (std::size_t n = rng() % 24; text.size() < n;) text += static_cast<char>('a' + rng() % 3);
    std::vector<std::string> stops;
    for (std::size_t n = 1 + rng() % 3; stops.size() < n;) {
      std::string s;
      for (std::size_t m = 1 + rng() % 4; s.size() < m;) s += static_cast<char>('a' + rng() % 3);
      stops.push_back(s);
    }
    std::size_t end = std::string::npos, begin = 0;
    for (const auto& s : stops)
      if (const std::size_t p = text.find(s); p != std::string::npos && (p + s.size() < end || (p + s.size() == end && p < begin))) begin = p, end = p + s.size();
    const std::string want = end == std::string::npos ? text : text.substr(0, begin);
    StopChecker checker(stops, false);
    std::string got;
    bool hit = false;
    for (std::size_t i = 0; i < text.size() && !hit;) {
      const std::size_t n = 1 + rng() % 5;
      const auto r = checker.push(text.substr(i, n));
      got += r.text;
      hit = r.stop != nullptr;
      i += n;
    }
    if (!hit) got += checker.flush();
    ASSERT_EQ(hit, end != std::string::npos) << text;
    ASSERT_EQ(got, want) << text;
  }
}

TEST(StopChecker, AnyCutGivesTheSameAfterAPrelude) {
  std::mt19937 rng(5);
  const Prelude think{"<t>", "</t>", false};
  for (int round = 0; round < 4000; ++round) {
    std::string text = rng() % 4 ? "<t>" : "";
    for (std::size_t n = rng() % 24; text.size() < n;) text += "ab<t/>"[rng() % 6];
    if (rng() % 2) text += "</t>ab<";
    const std::vector<std::string> stops = {"ab", "t>b"};
    std::vector<std::string> pieces;
    for (std::size_t at = 0; at < text.size();) {
      pieces.push_back(text.substr(at, 1 + rng() % 4));
      at += pieces.back().size();
    }
    const auto plain = [](std::string s) { std::erase(s, '|'); return s; };
    std::string want = text;
    const std::size_t close = text.starts_with("<t>") ? text.find("</t>", 3) : std::string::npos;
    if (!text.starts_with("<t>")) want = plain(feed(stops, {text}));
    else if (close != std::string::npos) want = text.substr(0, close + 4) + plain(feed(stops, {text.substr(close + 4)}));
    ASSERT_EQ(plain(feed(stops, pieces, false, think)), want) << text;
  }
}

}  // namespace
}  // namespace qengine
