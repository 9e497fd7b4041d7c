// Opens a fixture on the exact path, with the plugins of this build.
#pragma once

#include <gtest/gtest.h>

#include "core/base/log.hpp"
#include "core/engine/engine.hpp"
#include "tests/support/paths.hpp"

namespace qengine::test {

inline EngineOptions exact_options(const std::filesystem::path& model) {
  set_log_level("error");
  EngineOptions o;
  o.model = model;
  o.plugins.builtin_dir = binary_dir() / "bin/plugins";
  o.exact = true;
  o.threads = 2;
  o.need_tokenizer = false;
  return o;
}

inline Request greedy_request(std::vector<std::int32_t> prompt, std::int64_t max_tokens) {
  Request r;
  r.prompt = std::move(prompt);
  r.sampling.temperature = 0;
  r.sampling.max_tokens = max_tokens;
  r.sampling.ignore_eos = true;
  return r;
}

inline std::vector<std::int32_t> tokens_of(const std::vector<Output>& outputs) {
  std::vector<std::int32_t> t;
  for (const Output& o : outputs) {
    EXPECT_EQ(o.error, "");
    if (o.token >= 0) t.push_back(o.token);
  }
  return t;
}

inline std::string text_of(const std::vector<Output>& outputs) {
  std::string t;
  for (const Output& o : outputs) t += o.text;
  return t;
}

}  // namespace qengine::test
