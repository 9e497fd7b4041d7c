#include "core/load_test/prompts.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "core/base/error.hpp"

namespace qengine {
namespace {

// Short common words: one token each in most vocabularies.
constexpr std::array<const char*, 48> kWords{"time", "year",  "people", "way",   "day",   "man",   "thing", "woman", "life",  "child", "world", "school",
                                             "state", "family", "group", "country", "problem", "hand", "part",  "place", "case",  "week",  "company", "system",
                                             "program", "question", "work", "number", "night", "point", "home", "water", "room", "mother", "area", "money",
                                             "story", "fact", "month", "lot", "right", "study", "book", "eye", "job", "word", "business", "issue"};

}  // namespace

std::vector<LoadRequest> random_prompts(const RandomPrompts& o) {
  std::mt19937_64 rng(o.seed);
  const auto length = [&](std::int64_t middle) {
    const auto least = std::max<std::int64_t>(1, static_cast<std::int64_t>(std::floor(static_cast<double>(middle) * (1 - o.range_ratio))));
    const auto most = std::max(least, static_cast<std::int64_t>(std::ceil(static_cast<double>(middle) * (1 + o.range_ratio))));
    return least + static_cast<std::int64_t>(rng() % static_cast<std::uint64_t>(most - least + 1));
  };
  std::vector<LoadRequest> out(static_cast<std::size_t>(o.count));
  for (LoadRequest& r : out) {
    const std::int64_t n = length(o.input_len);
    r.output_tokens = length(o.output_len);
    for (std::int64_t i = 0; i < n; ++i) {
      if (o.vocab_size > 0) r.ids.push_back(static_cast<std::int32_t>(rng() % static_cast<std::uint64_t>(o.vocab_size)));
      else r.text += (i ? " " : "") + std::string(kWords[rng() % kWords.size()]);
    }
  }
  return out;
}

std::vector<LoadRequest> prompts_of_jsonl(const std::string& text, const std::string& name, std::int64_t output_len) {
  std::vector<LoadRequest> out;
  std::size_t begin = 0;
  for (int line = 1; begin < text.size(); ++line) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view one(text.data() + begin, end - begin);
    begin = end + 1;
    if (one.find_first_not_of(" \t\r") == one.npos) continue;
    const auto json = nlohmann::json::parse(one, nullptr, false);
    const auto wrong = [&](const char* what) { return Error("E101", name + ":" + std::to_string(line) + ": " + what).hint("a line is {\"prompt\": \"...\", \"output_tokens\": 128}"); };
    if (!json.is_object() || !json.contains("prompt")) throw wrong("expected a JSON object with \"prompt\"");
    LoadRequest r;
    r.output_tokens = output_len;
    const auto& prompt = json["prompt"];
    if (prompt.is_string()) r.text = prompt.get<std::string>();
    else if (prompt.is_array() && std::all_of(prompt.begin(), prompt.end(), [](const auto& id) { return id.is_number_unsigned() && id.template get<std::uint64_t>() < (1ull << 31); })) r.ids = prompt.get<std::vector<std::int32_t>>();
    else throw wrong("\"prompt\" is neither a text nor a list of token ids");
    if (r.text.empty() && r.ids.empty()) throw wrong("\"prompt\" is empty");
    if (json.contains("output_tokens")) {
      if (!json["output_tokens"].is_number_unsigned() || json["output_tokens"].get<std::uint64_t>() < 1 || json["output_tokens"].get<std::uint64_t>() > 1'000'000) throw wrong("\"output_tokens\" is no number from 1 to 1,000,000");
      r.output_tokens = json["output_tokens"].get<std::int64_t>();
    }
    out.push_back(std::move(r));
  }
  if (out.empty()) throw Error("E101", name + " holds no prompt").hint("a line is {\"prompt\": \"...\", \"output_tokens\": 128}");
  return out;
}

}  // namespace qengine
