// tokenizer.json: refused with an Error, or a tokenizer that encodes and decodes whatever it is given.
#include <cstdint>
#include <cstdlib>

#include "core/base/error.hpp"
#include "core/tokenizer/pipeline.hpp"
#include "core/tokenizer/unicode.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace qengine;
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  try {
    const PipelineTokenizer tokenizer(parse_tokenizer_json(bytes, "tokenizer.json"));
    for (const std::string& text : {std::string("Hello, w\u00F6rld 123  \n\n<s> a\u0301 \xF0\x9F\x98\x80 \u2581x"), std::string(300, 'a'), bytes.substr(0, 400)}) {
      std::vector<std::int32_t> ids = tokenizer.encode(text, true);
      for (const std::int32_t id : ids)
        if (id < 0 || id >= tokenizer.size()) std::abort();
      ids.push_back(-1);
      ids.push_back(tokenizer.size());
      for (std::int32_t id = 0; id < std::min(tokenizer.size(), 300); ++id) ids.push_back(id);
      const std::string decoded = tokenizer.decode(ids, false);
      if (!unicode::is_valid(decoded)) std::abort();
      const auto stream = tokenizer.stream(false);
      std::string streamed;
      for (const std::int32_t id : ids) {
        const std::string chunk = stream->push(id);
        if (!unicode::is_valid(chunk)) std::abort();
        streamed += chunk;
      }
      if (streamed + stream->flush() != decoded) std::abort();
    }
  } catch (const Error& e) {
    if (e.code() == "E000" || e.message().find('\n') != std::string::npos) std::abort();
  }
  return 0;
}
