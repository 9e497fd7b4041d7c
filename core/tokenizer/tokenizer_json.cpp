// Reads tokenizer.json and the files beside it (formats.md 2.7, 2.9, 2.10).
//
// A vocabulary has 150,000 entries and as many merges: those two are taken from the parser's events as
// they come, everything else becomes a small Json value first.
#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "core/base/error.hpp"
#include "core/base/log.hpp"
#include "core/model/text.hpp"
#include "core/tokenizer/json_fields.hpp"
#include "core/tokenizer/patterns.hpp"
#include "core/tokenizer/pipeline.hpp"

namespace qengine {
namespace {

namespace fs = std::filesystem;
constexpr std::uintmax_t kMaxFile = 256u << 20;
constexpr std::size_t kMaxDepth = 64, kMaxKeys = 4096;

// nullopt when there is no such file.
std::optional<std::string> read_file(const fs::path& path) {
  std::error_code ec;
  if (!fs::exists(path, ec)) return std::nullopt;
  if (!fs::is_regular_file(path, ec)) throw Error("E220", path.filename().string() + " is not a regular file").in(path.string());
  const std::uintmax_t size = fs::file_size(path, ec);
  if (ec || size > kMaxFile)
    throw Error("E220", path.filename().string() + " is too large (" + std::to_string(size) + " bytes)").in(path.string()).from("at most 256 MiB");
  std::ifstream in(path, std::ios::binary);
  std::string text(static_cast<std::size_t>(size), '\0');
  if (!in.read(text.data(), static_cast<std::streamsize>(size))) throw Error("E220", "cannot read " + path.filename().string()).in(path.string());
  return text;
}

[[noreturn]] void not_json(const std::string& what, const std::string& why, std::string_view text) {
  throw Error("E220", what).from(why.substr(0, 200)).hint(mistaken_hint(text, "the file is damaged or was edited by hand; fetch it again"));
}

std::string spelled(std::string_view token) {
  std::string s = nlohmann::json(std::string(token.substr(0, 80))).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return token.size() > 80 ? s + "..." : s;
}

// Merges as spelled; both parts lie one behind the other in `text`.
struct MergeList {
  struct Item {
    std::uint32_t begin, left, right;
  };
  std::string text;
  std::vector<Item> items;
  void add(std::string_view left, std::string_view right) {
    items.push_back({static_cast<std::uint32_t>(text.size()), static_cast<std::uint32_t>(left.size()), static_cast<std::uint32_t>(right.size())});
    text.append(left).append(right);
  }
  std::string_view left(const Item& i) const { return {text.data() + i.begin, i.left}; }
  std::string_view right(const Item& i) const { return {text.data() + i.begin + i.left, i.right}; }
};

class Reader : public nlohmann::json_sax<Json> {
 public:
  Reader(std::string name, std::string_view text, Vocab& vocab, MergeList& merges)
      : name_(std::move(name)), text_(text), vocab_(vocab), merges_(merges) {}

  Json root;
  bool has_vocab = false, has_merges = false;

  bool null() override { return value(nullptr); }
  bool boolean(bool v) override { return value(v); }
  bool number_integer(number_integer_t v) override { return mode_ == Mode::kVocab && depth_ == 3 ? token(v) : value(v); }
  bool number_unsigned(number_unsigned_t v) override {
    if (mode_ == Mode::kVocab && depth_ == 3) return token(v > static_cast<number_unsigned_t>(Vocab::kMaxId) ? Vocab::kMaxId + 1 : static_cast<std::int64_t>(v));
    return value(v);
  }
  bool number_float(number_float_t v, const string_t&) override { return value(v); }
  bool binary(binary_t&) override { return false; }
  bool string(string_t& v) override {
    if (mode_ == Mode::kMerges) return merge(v);
    return value(v);
  }
  bool key(string_t& v) override {
    if (mode_ == Mode::kSkip) return true;
    key_ = std::move(v);
    return true;
  }
  bool start_object(std::size_t) override {
    if (mode_ == Mode::kBuild && at_model("vocab")) {
      mode_ = Mode::kVocab, has_vocab = true;
      return enter();
    }
    return open(Json::object());
  }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override {
    if (mode_ == Mode::kBuild && at_model("merges")) {
      mode_ = Mode::kMerges, has_merges = true;
      return enter();
    }
    if (mode_ == Mode::kBuild && at_model("vocab")) {  // Unigram: a list of [token, score]
      mode_ = Mode::kSkip;
      return enter();
    }
    if (mode_ == Mode::kMerges && depth_ == 3) {
      pair_.clear();
      return enter();
    }
    return open(Json::array());
  }
  bool end_array() override {
    if (mode_ == Mode::kMerges && depth_ == 4) {
      if (pair_.size() != 2) throw Error("E220", merge_name() + " has " + std::to_string(pair_.size()) + " parts, expected 2");
      merges_.add(pair_[0], pair_[1]);
    }
    return close();
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& e) override {
    std::string why = e.what();
    if (const auto at = why.find("] "); at != std::string::npos) why = why.substr(at + 2);
    not_json(name_ + " is not valid JSON (byte " + std::to_string(position) + ")", why, text_);
  }

 private:
  enum class Mode { kBuild, kVocab, kMerges, kSkip };

  bool at_model(std::string_view name) const { return depth_ == 2 && stack_.size() == 2 && keys_[0] == "model" && stack_[1]->is_object() && key_ == name; }
  std::string merge_name() const { return "model.merges[" + std::to_string(merges_.items.size()) + "]"; }

  bool enter() {
    if (++depth_ > kMaxDepth) throw Error("E220", name_ + " nests deeper than " + std::to_string(kMaxDepth) + " levels");
    return true;
  }
  bool close() {
    --depth_;
    if (mode_ == Mode::kBuild) stack_.pop_back(), keys_.pop_back();
    else if (depth_ == 2) mode_ = Mode::kBuild;
    return true;
  }
  bool open(Json v) {
    if (mode_ == Mode::kVocab) throw Error("E220", "model.vocab[" + spelled(key_) + "] is no integer");
    if (mode_ == Mode::kMerges) throw Error("E220", merge_name() + " is neither a string nor a pair of strings");
    enter();
    if (mode_ == Mode::kSkip) return true;
    std::string key = key_;
    stack_.push_back(&place(std::move(v)));
    keys_.push_back("");
    if (keys_.size() >= 2) keys_[keys_.size() - 2] = std::move(key);
    return true;
  }
  bool value(Json v) {
    if (mode_ == Mode::kSkip) return true;
    if (mode_ == Mode::kVocab) throw Error("E220", "model.vocab[" + spelled(key_) + "] is " + v.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 40) + ", expected an integer");
    if (mode_ == Mode::kMerges) throw Error("E220", merge_name() + " is neither a string nor a pair of strings");
    place(std::move(v));
    return true;
  }
  Json& place(Json v) {
    if (stack_.empty()) return root = std::move(v);
    Json& parent = *stack_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(v));
      return parent.back();
    }
    if (parent.size() >= kMaxKeys) throw Error("E220", name_ + " has an object of more than " + std::to_string(kMaxKeys) + " keys outside model.vocab");
    return parent[key_] = std::move(v);
  }
  bool token(std::int64_t id) {
    if (id < 0 || id > Vocab::kMaxId)
      throw Error("E220", "model.vocab[" + spelled(key_) + "] has the id " + (id < 0 ? std::to_string(id) : "above " + std::to_string(Vocab::kMaxId)) +
                              ", expected 0 to " + std::to_string(Vocab::kMaxId));
    vocab_.add(key_, static_cast<std::int32_t>(id));
    return true;
  }
  bool merge(const std::string& v) {
    if (depth_ == 4) {
      pair_.push_back(v);
      return true;
    }
    if (merges_.items.empty() && v.starts_with("#version")) return true;
    const std::size_t space = v.find(' ');
    if (space == std::string::npos || v.find(' ', space + 1) != std::string::npos)
      throw Error("E220", merge_name() + " is " + spelled(v) + ", expected two tokens and one space between them");
    merges_.add(std::string_view(v).substr(0, space), std::string_view(v).substr(space + 1));
    return true;
  }

  std::string name_;
  std::string_view text_;
  Vocab& vocab_;
  MergeList& merges_;
  Mode mode_ = Mode::kBuild;
  std::size_t depth_ = 0;           // open objects and arrays
  std::vector<Json*> stack_;        // those being built
  std::vector<std::string> keys_;   // keys_[i]: the key that leads from stack_[i] to stack_[i+1]
  std::string key_;
  std::vector<std::string> pair_;
};

std::unique_ptr<TokenModel> make_model(const Json& json, const Reader& reader, const Vocab& vocab, const MergeList& list) {
  const JsonFields f(json, "model");
  const std::string type = f.string("type", "BPE");
  if (type != "BPE")
    throw Error("E220", "model.type is \"" + type + "\"; qengine reads BPE").hint("convert the tokenizer to a BPE tokenizer.json, or use a GGUF file of the model");
  if (!reader.has_vocab) throw Error("E220", "model.vocab is missing");
  if (!reader.has_merges) throw Error("E220", "model.merges is missing");
  BpeOptions o;
  o.byte_fallback = f.boolean("byte_fallback", false);
  o.fuse_unk = f.boolean("fuse_unk", false);
  o.ignore_merges = f.boolean("ignore_merges", false);
  o.prefix = f.string("continuing_subword_prefix", "");
  o.suffix = f.string("end_of_word_suffix", "");
  if (const std::string unk = f.string("unk_token", ""); !unk.empty()) {
    const std::int32_t id = vocab.find(unk);
    if (id == Vocab::kNone) throw Error("E220", "model.unk_token is " + spelled(unk) + ", which is not in model.vocab");
    o.unk = id;
  }
  MergeTable merges;
  merges.reserve(list.items.size());
  std::string joined;
  std::int32_t id = Vocab::kNone;
  for (std::size_t i = 0; i < list.items.size(); ++i) {
    const auto& item = list.items[i];
    const std::string_view left = list.left(item), right = list.right(item);
    const std::int32_t l = vocab.find(left), r = vocab.find(right);
    std::string_view whole(left.data(), left.size() + right.size());
    if (!o.prefix.empty() && right.starts_with(o.prefix)) {
      joined.assign(left).append(right.substr(o.prefix.size()));
      whole = joined;
    }
    id = vocab.find(whole, id + 1);
    if (l == Vocab::kNone || r == Vocab::kNone || id == Vocab::kNone) {
      const std::string_view missing = l == Vocab::kNone ? left : r == Vocab::kNone ? right : whole;
      throw Error("E220", "model.merges[" + std::to_string(i) + "] joins " + spelled(left) + " and " + spelled(right) + ", but " + spelled(missing) + " is not in model.vocab")
          .hint("the file is damaged, or its vocabulary was cut without its merges");
    }
    merges.add(l, r, {static_cast<std::int32_t>(i), id});
  }
  return std::make_unique<BpeModel>(vocab, std::move(merges), std::move(o));
}

void read_added_tokens(const Json& json, TokenizerParts& parts) {
  if (json.is_null()) return;
  if (!json.is_array()) throw Error("E220", "added_tokens is no array");
  for (std::size_t i = 0; i < json.size(); ++i) {
    const JsonFields f(json[i], "added_tokens[" + std::to_string(i) + "]");
    AddedToken t;
    t.content = f.string("content");
    f.require("id");
    const std::int64_t id = f.integer("id", 0);
    if (id < 0 || id > Vocab::kMaxId)
      throw Error("E220", f.path("id") + " is " + std::to_string(id) + " for " + spelled(t.content) + ", expected 0 to " + std::to_string(Vocab::kMaxId));
    t.id = static_cast<std::int32_t>(id);
    t.special = f.boolean("special", false);
    t.normalized = f.boolean("normalized", !t.special);
    t.single_word = f.boolean("single_word", false);
    t.lstrip = f.boolean("lstrip", false);
    t.rstrip = f.boolean("rstrip", false);
    // A string that the vocabulary has keeps its id there.
    if (const std::int32_t known = parts.vocab->find(t.content); known != Vocab::kNone) t.id = known;
    else parts.vocab->add(t.content, t.id);
    if (!t.content.empty()) parts.added.push_back(std::move(t));
  }
}

std::int32_t special_id(const TokenizerParts& parts, const std::string& token, const std::string& where) {
  const std::int32_t id = parts.vocab->find(token);
  if (id == Vocab::kNone) throw Error("E220", where + " names the token " + spelled(token) + ", which does not exist");
  return id;
}

// What the post-processor puts before and after the ids of one text. A later one in a Sequence wraps
// what the earlier made.
void read_post_processor(const Json& json, const std::string& where, TokenizerParts& parts) {
  const JsonFields f(json, where);
  const std::string type = f.string("type");
  std::vector<std::int32_t> before, after;
  if (type == "ByteLevel") return;
  if (type == "TemplateProcessing") {
    const Json& items = f.array("single");
    bool behind = false;
    for (std::size_t i = 0; i < items.size(); ++i) {
      const JsonFields item(items[i], f.path("single[" + std::to_string(i) + "]"));
      if (const Json* special = item.find("SpecialToken")) {
        const std::string name = JsonFields(*special, item.path("SpecialToken")).string("id");
        const JsonFields table(f.require("special_tokens"), f.path("special_tokens"));
        const JsonFields entry(table.require(name), table.path(name));
        auto& to = behind ? after : before;
        for (const Json& id : entry.array("ids")) {
          if (!id.is_number_integer() || id.get<std::int64_t>() < 0 || id.get<std::int64_t>() > Vocab::kMaxId)
            throw Error("E220", entry.path("ids") + " holds something that is no token id");
          to.push_back(id.get<std::int32_t>());
        }
      } else if (const Json* sequence = item.find("Sequence")) {
        if (JsonFields(*sequence, item.path("Sequence")).string("id") != "A" || behind)
          throw Error("E220", item.path("Sequence") + " is not the one text of a single template (A)");
        behind = true;
      } else {
        throw Error("E220", item.where() + " is neither a SpecialToken nor a Sequence");
      }
    }
    if (!behind) throw Error("E220", f.path("single") + " has no Sequence A");
  } else if (type == "RobertaProcessing" || type == "BertProcessing") {
    const auto token = [&](const char* key) {
      const Json& pair = f.array(key);
      if (pair.size() != 2 || !pair[0].is_string()) f.reject(key, pair, "[token, id]");
      return special_id(parts, pair[0].get<std::string>(), f.path(key));
    };
    before = {token("cls")};
    after = {token("sep")};
  } else if (type == "Sequence") {
    const Json& list = f.array("processors");
    for (std::size_t i = 0; i < list.size(); ++i) read_post_processor(list[i], where + ".processors[" + std::to_string(i) + "]", parts);
  } else {
    throw Error("E220", where + ".type is \"" + type + "\", which is not a known post-processor")
        .from("known: TemplateProcessing ByteLevel RobertaProcessing BertProcessing Sequence");
  }
  parts.prefix.insert(parts.prefix.begin(), before.begin(), before.end());
  parts.suffix.insert(parts.suffix.end(), after.begin(), after.end());
}

const Json& at(const Json& root, std::string_view key) {
  static const Json kNull;
  const auto it = root.find(key);
  return it == root.end() ? kNull : *it;
}

TokenizerParts parse(const std::string& text, const std::string& name, bool& has_post_processor) {
  TokenizerParts parts;
  MergeList merges;
  parts.vocab->reserve(std::min<std::size_t>(text.size() / 48, 1 << 18), text.size() / 8);
  Reader reader(name, text, *parts.vocab, merges);
  Json::sax_parse(text, &reader);
  const Json& root = reader.root;
  if (!root.is_object()) throw Error("E220", name + " is not a JSON object");
  const JsonFields f(root, "tokenizer");
  if (const Json* version = f.find("version"); version && *version != "1.0") f.reject("version", *version, "\"1.0\"");
  if (!f.find("model")) throw Error("E220", name + " has no model");
  parts.model = make_model(at(root, "model"), reader, *parts.vocab, merges);
  read_added_tokens(at(root, "added_tokens"), parts);
  parts.normalizer = make_normalizer(at(root, "normalizer"));
  parts.pre_tokenizer = make_pre_tokenizer(at(root, "pre_tokenizer"));
  parts.decoder = make_decoder(at(root, "decoder"));
  const Json& post = at(root, "post_processor");
  has_post_processor = !post.is_null();
  if (has_post_processor) read_post_processor(post, "post_processor", parts);
  for (const auto* list : {&parts.prefix, &parts.suffix})
    for (const std::int32_t id : *list)
      if (!parts.vocab->has(id)) throw Error("E220", "post_processor adds the id " + std::to_string(id) + ", which no token has");
  return parts;
}

// Errors of `f` say which file they are about.
template <class F>
auto naming(const fs::path& file, F&& f) {
  try {
    return f();
  } catch (const Error& e) {
    throw in_file(e, file.string());
  }
}

// The files beside tokenizer.json are read into sorted objects: added_tokens_decoder may have
// thousands of keys.
nlohmann::json read_side_file(const fs::path& path) {
  const auto text = read_file(path);
  if (!text) return nlohmann::json::object();
  return naming(path, [&] {
    nlohmann::json json;
    try {
      json = nlohmann::json::parse(*text);
    } catch (const nlohmann::json::exception& e) {
      not_json(path.filename().string() + " is not valid JSON", e.what(), *text);
    }
    if (!json.is_object()) throw Error("E220", path.filename().string() + " is not a JSON object");
    return json;
  });
}

// "..." or {"content": "..."}; "" for anything else.
std::string token_text(const nlohmann::json& j) {
  if (j.is_string()) return j.get<std::string>();
  if (j.is_object())
    if (const auto it = j.find("content"); it != j.end() && it->is_string()) return it->get<std::string>();
  return {};
}

// tokenizer.json of a folder where nobody saved one: vocab.json and merges.txt in the pipeline of the class that wrote them.
// nullopt when they are not there, or of a class whose pipeline depends on more than its name.
std::optional<std::string> from_vocab_and_merges(const fs::path& folder, const std::string& tokenizer_class) {
  if (tokenizer_class != "Qwen2Tokenizer" && tokenizer_class != "Qwen2TokenizerFast") return std::nullopt;
  const auto vocab = read_file(folder / "vocab.json"), lines = read_file(folder / "merges.txt");
  if (!vocab || !lines) return std::nullopt;
  Json merges = Json::array();
  std::istringstream in(*lines);
  for (std::string line; std::getline(in, line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty() && !(merges.empty() && line.starts_with("#version"))) merges.push_back(line);
  }
  const Json split = {{"type", "Split"}, {"pattern", {{"Regex", std::string(patterns::kQwen2)}}}, {"behavior", "Isolated"}, {"invert", false}};
  const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const Json steps = {{"type", "Sequence"}, {"pretokenizers", Json::array({split, bytes})}};
  return R"({"model":{"type":"BPE","vocab":)" + *vocab + R"(,"merges":)" + merges.dump(-1, ' ', false, Json::error_handler_t::replace) +
         R"(},"normalizer":{"type":"NFC"},"pre_tokenizer":)" + steps.dump() + R"(,"post_processor":{"type":"ByteLevel"},"decoder":{"type":"ByteLevel"}})";
}

void make_special(TokenizerParts& parts, const std::string& text) {
  const std::int32_t id = text.empty() ? Vocab::kNone : parts.vocab->find(text);
  if (id == Vocab::kNone) return;
  for (AddedToken& t : parts.added)
    if (t.id == id) {
      t.special = true;
      return;
    }
  AddedToken t;
  t.id = id, t.content = text, t.special = true;
  parts.added.push_back(std::move(t));
}

void read_templates(const fs::path& folder, const nlohmann::json& config, TokenizerParts& parts) {
  const auto put = [&](const std::string& name, std::string text) { parts.templates.emplace(name == "default" ? "" : name, std::move(text)); };
  // First hit wins, so the order here is the order of formats.md 2.10.
  if (auto text = read_file(folder / "chat_template.jinja")) put("", std::move(*text));
  std::error_code ec;
  for (fs::directory_iterator it(folder / "additional_chat_templates", ec), end; !ec && it != end; it.increment(ec))
    if (it->path().extension() == ".jinja")
      if (auto text = read_file(it->path())) put(it->path().stem().string(), std::move(*text));
  const auto from = [&](const nlohmann::json& json, const fs::path& file) {
    const auto t = json.find("chat_template");
    if (t == json.end() || t->is_null()) return;
    if (t->is_string()) return put("", t->get<std::string>());
    if (t->is_array()) {
      for (const auto& item : *t)
        if (item.is_object() && item.contains("name") && item["name"].is_string() && item.contains("template") && item["template"].is_string())
          put(item["name"].get<std::string>(), item["template"].get<std::string>());
      return;
    }
    throw Error("E220", "chat_template is neither a string nor a list of {name, template}").in(file.string());
  };
  from(config, folder / "tokenizer_config.json");
  from(read_side_file(folder / "chat_template.json"), folder / "chat_template.json");
}

}  // namespace

TokenizerParts parse_tokenizer_json(const std::string& text, const std::string& name) {
  bool has_post_processor = false;
  return parse(text, name, has_post_processor);
}

TokenizerParts read_tokenizer_json(const fs::path& folder) {
  const nlohmann::json config = read_side_file(folder / "tokenizer_config.json");
  const nlohmann::json map = read_side_file(folder / "special_tokens_map.json");
  fs::path file = folder / "tokenizer.json";
  auto text = read_file(file);
  if (!text) {
    const std::string tokenizer_class = config.contains("tokenizer_class") ? token_text(config["tokenizer_class"]) : "";
    text = from_vocab_and_merges(folder, tokenizer_class);
    if (text) {
      file = folder / "vocab.json";
    } else {
      Error e("E220", "no tokenizer.json in " + folder.string());
      const bool pieces = fs::exists(folder / "vocab.json") && fs::exists(folder / "merges.txt");
      if (fs::exists(folder / "tokenizer.model")) e.from("there is a tokenizer.model (SentencePiece)");
      else if (pieces) e.from("there are vocab.json and merges.txt; with tokenizer_class Qwen2Tokenizer they are enough, it is " + (tokenizer_class.empty() ? "missing" : printable(tokenizer_class)));
      else throw e.hint("copy tokenizer.json and tokenizer_config.json of the model into the folder, or name another with --tokenizer");
      throw e.hint("save the tokenizer as tokenizer.json with the library that made it, or use a GGUF file of the model");
    }
  }
  bool has_post_processor = false;
  TokenizerParts parts = naming(file, [&] { return parse(*text, file.filename().string(), has_post_processor); });

  const auto named = [&](const char* key) -> nlohmann::json {
    const auto it = config.find(key);
    return it != config.end() ? *it : map.contains(key) ? map[key] : nlohmann::json();
  };
  const std::string bos = token_text(named("bos_token")), eos = token_text(named("eos_token"));
  std::set<std::string> special = {bos, eos, token_text(named("unk_token")), token_text(named("pad_token"))};
  for (const char* key : {"additional_special_tokens", "extra_special_tokens"})
    if (const nlohmann::json list = named(key); list.is_array())
      for (const auto& t : list) special.insert(token_text(t));

  // Tokens that tokenizer.json leaves out: by id, or in older folders by their text alone.
  std::set<std::string> known;
  for (const AddedToken& t : parts.added) known.insert(t.content);
  Json more = Json::array();
  if (const auto extra = config.find("added_tokens_decoder"); extra != config.end() && extra->is_object()) {
    for (const auto& [id, token] : extra->items()) {
      if (known.count(token_text(token)) || id.empty() || id.size() > 9 || id.find_first_not_of("0123456789") != std::string::npos) continue;
      Json item = token;
      item["id"] = std::stol(id);
      more.push_back(std::move(item));
    }
    naming(folder / "tokenizer_config.json", [&] { return read_added_tokens(more, parts), 0; });
  } else {
    const nlohmann::json older = read_side_file(folder / "added_tokens.json");
    for (const auto& [token, id] : older.items())
      if (!known.count(token)) more.push_back({{"content", token}, {"id", id}, {"special", special.count(token) > 0}});
    naming(folder / "added_tokens.json", [&] { return read_added_tokens(more, parts), 0; });
  }
  for (const std::string& t : special) make_special(parts, t);
  if (const std::int32_t id = parts.vocab->find(bos); !bos.empty() && id != Vocab::kNone) parts.bos = id;
  if (const std::int32_t id = parts.vocab->find(eos); !eos.empty() && id != Vocab::kNone) parts.eos = {id};
  if (!has_post_processor) {  // else it decides, as the library that wrote the file does
    const auto flag = [&](const char* key) { return config.contains(key) && config[key].is_boolean() && config[key].get<bool>(); };
    if (flag("add_bos_token") && parts.bos) parts.prefix = {*parts.bos};
    if (flag("add_eos_token") && !parts.eos.empty()) parts.suffix = {parts.eos[0]};
  }
  read_templates(folder, config, parts);
  return parts;
}

}  // namespace qengine
