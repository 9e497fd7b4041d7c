// The merge loops against the dumbest ones that could work: look at every pair, join the best, again.
#include "core/tokenizer/model.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "core/tokenizer/added_tokens.hpp"

namespace qengine {
namespace {

using Ids = std::vector<std::int32_t>;

// Letters a to d, and random merges of what is there already.
struct RandomBpe {
  Vocab vocab;
  MergeTable table;
  std::map<std::pair<std::int32_t, std::int32_t>, std::pair<std::int32_t, std::int32_t>> merges;  // -> rank, id
  std::vector<float> scores;

  explicit RandomBpe(std::mt19937& rng) {
    for (const char* c : {"a", "b", "c", "d"}) vocab.add(c, vocab.size());
    for (int rank = 0; rank < 40; ++rank) {
      const auto l = static_cast<std::int32_t>(rng() % static_cast<unsigned>(vocab.size())), r = static_cast<std::int32_t>(rng() % static_cast<unsigned>(vocab.size()));
      const std::string joined = std::string(vocab.token(l)) + std::string(vocab.token(r));
      if (joined.size() > 12) continue;
      std::int32_t id = vocab.find(joined);
      if (id == Vocab::kNone) vocab.add(joined, id = vocab.size());
      table.add(l, r, {rank, id});
      merges[{l, r}] = {rank, id};
    }
    for (std::int32_t i = 0; i < vocab.size(); ++i) scores.push_back(static_cast<float>(rng() % 8));  // ties on purpose
  }

  Ids slow(const std::string& text) const {
    Ids ids;
    for (const char c : text) ids.push_back(vocab.find({&c, 1}));
    for (;;) {
      std::size_t best = ids.size();
      std::pair<std::int32_t, std::int32_t> merge{1 << 30, 0};
      for (std::size_t i = 0; i + 1 < ids.size(); ++i)
        if (const auto m = merges.find({ids[i], ids[i + 1]}); m != merges.end() && m->second.first < merge.first) best = i, merge = m->second;
      if (best == ids.size()) return ids;
      ids[best] = merge.second;
      ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
  }

  Ids slow_by_score(const std::string& text) const {
    std::vector<std::string> parts;
    for (const char c : text) parts.emplace_back(1, c);
    for (;;) {
      std::size_t best = parts.size();
      float score = -1;
      for (std::size_t i = 0; i + 1 < parts.size(); ++i)
        if (const std::int32_t id = vocab.find(parts[i] + parts[i + 1]); id >= 0 && scores[static_cast<std::size_t>(id)] > score) best = i, score = scores[static_cast<std::size_t>(id)];
      if (best == parts.size()) break;
      parts[best] += parts[best + 1];
      parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
    Ids ids;
    for (const std::string& p : parts) ids.push_back(vocab.find(p));
    return ids;
  }
};

class Merging : public testing::TestWithParam<unsigned> {};

TEST_P(Merging, LowestRankThenLeftmostWins) {
  std::mt19937 rng(GetParam());
  const RandomBpe bpe(rng);
  const BpeModel model(bpe.vocab, bpe.table, {});
  const ScoreModel by_score(bpe.vocab, bpe.scores, std::nullopt);
  for (int i = 0; i < 200; ++i) {
    std::string text;
    for (unsigned n = rng() % 200, letters = 1 + rng() % 4; n > 0; --n) text += static_cast<char>('a' + rng() % letters);
    Ids fast, fast_by_score;
    model.encode(text, fast);
    by_score.encode(text, fast_by_score);
    ASSERT_EQ(fast, bpe.slow(text)) << text;
    ASSERT_EQ(fast_by_score, bpe.slow_by_score(text)) << text;
  }
}
INSTANTIATE_TEST_SUITE_P(Seed, Merging, testing::Range(0u, 20u));

TEST(Bpe, UnknownCharactersBecomeBytesOrTheUnknownToken) {
  Vocab vocab;
  for (const char* t : {"a", "<unk>", "<0xC3>", "<0xA9>"}) vocab.add(t, vocab.size());
  const auto encode = [&](BpeOptions o, const char* text) {
    Ids ids;
    BpeModel(vocab, {}, std::move(o)).encode(text, ids);
    return ids;
  };
  EXPECT_EQ(encode({}, "axyb"), (Ids{0}));  // nothing to stand for them
  EXPECT_EQ(encode({.unk = 1}, "axyb"), (Ids{0, 1, 1, 1}));
  EXPECT_EQ(encode({.fuse_unk = true, .unk = 1}, "axyab"), (Ids{0, 1, 0, 1}));
  EXPECT_EQ(encode({.byte_fallback = true, .unk = 1}, "a\u00E9\u00EA"), (Ids{0, 2, 3, 1}));  // <0xAA> is not there
}

TEST(Bpe, IgnoreMergesTakesAWholePieceFromTheVocabulary) {
  Vocab vocab;
  for (const char* t : {"a", "b", "ab"}) vocab.add(t, vocab.size());
  Ids with, without;
  BpeModel(vocab, {}, {.ignore_merges = true}).encode("ab", with);
  BpeModel(vocab, {}, {}).encode("ab", without);
  EXPECT_EQ(with, (Ids{2}));
  EXPECT_EQ(without, (Ids{0, 1}));
}

TEST(VocabTable, FindsWhatWasAddedAndNothingElse) {
  Vocab vocab;
  std::map<std::string, std::int32_t> model;
  std::mt19937 rng(7);
  for (std::int32_t id = 0; id < 5000; id += 1 + static_cast<std::int32_t>(rng() % 2)) {
    const std::string token = "t" + std::to_string(rng() % 100000);
    if (model.count(token)) continue;
    vocab.add(token, id);
    model[token] = id;
  }
  EXPECT_EQ(vocab.count(), model.size());
  for (int i = 0; i < 100000; i += 7) {
    const std::string token = "t" + std::to_string(i);
    const auto known = model.find(token);
    EXPECT_EQ(vocab.find(token), known == model.end() ? Vocab::kNone : known->second);
  }
  for (const auto& [token, id] : model) EXPECT_EQ(vocab.token(id), token);
  EXPECT_EQ(vocab.token(-1), "");
  EXPECT_EQ(vocab.token(vocab.size()), "");
}

// Leftmost, then longest: against trying every token at every place.
TEST(AddedTokens, AreFoundLeftmostAndLongest) {
  std::mt19937 rng(3);
  for (int round = 0; round < 300; ++round) {
    std::vector<AddedToken> tokens;
    std::vector<std::string> spelled;
    for (std::int32_t i = 0; i < 12; ++i) {
      std::string s;
      for (unsigned n = 1 + rng() % 4; n > 0; --n) s += static_cast<char>('a' + rng() % 3);
      AddedToken t;
      t.id = i;
      tokens.push_back(t);
      spelled.push_back(s);
    }
    std::string text;
    for (unsigned n = rng() % 40; n > 0; --n) text += static_cast<char>('a' + rng() % 4);
    std::vector<std::string> expected, found;
    for (std::size_t at = 0, gap = 0; at <= text.size();) {
      std::size_t best = 0;
      for (const std::string& s : spelled)
        if (text.compare(at, s.size(), s) == 0) best = std::max(best, s.size());
      if (best == 0 && at < text.size()) {
        ++at;
        continue;
      }
      if (gap < at) expected.push_back("-" + text.substr(gap, at - gap));
      if (best == 0) break;
      expected.push_back("+" + text.substr(at, best));
      gap = at += best;
    }
    TokenFinder(tokens, spelled).split(
        text, [&](const AddedToken& t, std::size_t b, std::size_t e) {
          found.push_back("+" + text.substr(b, e - b));
          ASSERT_EQ(spelled[static_cast<std::size_t>(t.id)], text.substr(b, e - b));
        },
        [&](std::size_t b, std::size_t e) { found.push_back("-" + text.substr(b, e - b)); });
    ASSERT_EQ(found, expected) << text;
  }
}

}  // namespace
}  // namespace qengine
