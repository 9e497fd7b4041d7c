#include "core/sampling/stop.hpp"

#include <gtest/gtest.h>

#include <random>

namespace qengine {
namespace {

// Pieces in, shown text out, '|' between events; the stop that hit at the end.
std::string feed(std::vector<std::string> stops, const std::vector<std::string>& pieces, bool include = false) {
  StopChecker s(std::move(stops), include);
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

}  // namespace
}  // namespace qengine
