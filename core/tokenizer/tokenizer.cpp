#include "core/tokenizer/tokenizer.hpp"

#include "core/base/error.hpp"
#include "core/base/log.hpp"
#include "core/tokenizer/pipeline.hpp"

namespace qengine {
namespace {

namespace fs = std::filesystem;

// A folder that holds a GGUF file and no tokenizer.json: that file (the first of a split).
fs::path gguf_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec))
    if (it->path().extension() == ".gguf") {
      const std::string name = it->path().stem().string();
      const std::size_t of = name.rfind("-of-");
      if (of != std::string::npos && of >= 6 && name.substr(of - 6, 6) != "-00001") continue;
      found.push_back(it->path());
    }
  return found.size() == 1 ? found[0] : fs::path();
}

}  // namespace

std::shared_ptr<const Tokenizer> Tokenizer::load(const fs::path& path) {
  std::error_code ec;
  if (!fs::exists(path, ec)) throw Error("E220", "there is no tokenizer at " + path.string()).hint("name a model folder, a tokenizer.json or a GGUF file");
  if (fs::is_directory(path, ec)) {
    if (!fs::exists(path / "tokenizer.json", ec))
      if (const fs::path gguf = gguf_in(path); !gguf.empty()) return load(gguf);
    return std::make_shared<PipelineTokenizer>(read_tokenizer_json(path));
  }
  if (path.filename() == "tokenizer.json") return std::make_shared<PipelineTokenizer>(read_tokenizer_json(path.parent_path()));
  if (path.extension() != ".gguf")
    throw Error("E220", path.string() + " is neither a model folder nor a tokenizer.json nor a GGUF file");
  return load(*Checkpoint::open(path));
}

std::shared_ptr<const Tokenizer> Tokenizer::load(const Checkpoint& checkpoint) {
  const bool gguf = checkpoint.kind() == Checkpoint::Kind::kGguf;
  auto tokenizer = gguf ? std::make_shared<PipelineTokenizer>(read_gguf_tokenizer(checkpoint))
                        : std::dynamic_pointer_cast<const PipelineTokenizer>(load(checkpoint.folder()));
  // An id beyond the embedding is the engine's to refuse when it comes; here it is worth a word.
  const Json& config = checkpoint.config();
  if (config.is_object())
    if (const auto vocab = config.find("vocab_size"); vocab != config.end() && vocab->is_number_integer())
      if (const auto rows = vocab->get<std::int64_t>(); tokenizer->size() > rows)
        log("tokenizer").warn("the token {} has the id {}; the model has {} rows (vocab_size)", tokenizer->piece(tokenizer->size() - 1), tokenizer->size() - 1, rows);
  return tokenizer;
}

struct StreamDecoder::State {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::unique_ptr<TextStream> stream;
};

StreamDecoder::StreamDecoder(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special) : state_(std::make_unique<State>()) {
  state_->stream = tokenizer->stream(skip_special);
  state_->tokenizer = std::move(tokenizer);
}
StreamDecoder::StreamDecoder(StreamDecoder&&) noexcept = default;
StreamDecoder& StreamDecoder::operator=(StreamDecoder&&) noexcept = default;
StreamDecoder::~StreamDecoder() = default;
std::string StreamDecoder::push(std::int32_t id) { return state_->stream->push(id); }
std::string StreamDecoder::flush() { return state_->stream->flush(); }

}  // namespace qengine
