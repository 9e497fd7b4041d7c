// plan: memory and speed of a model in a format on a card, before anything is loaded.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "apps/qengine/command.hpp"
#include "apps/qengine/plan_arm.hpp"
#include "apps/qengine/plugin_text.hpp"
#include "core/base/read_bandwidth.hpp"
#include "core/kv/kv_size.hpp"
#include "core/plan/plot.hpp"
#include "core/plan/tables.hpp"

namespace qengine {
namespace {

const SettingGroup& plan_settings() {
  static const SettingGroup group{
      "Plan",
      {
          {.name = "shape", .value = "NAME", .help = "a well-known model instead of MODEL: qwen3-4b, llama-3.3-70b, ..."},
          {.name = "format", .kind = Kind::kList, .value = "FORMAT[+KV]", .shown = "as MODEL is; shapes: bf16",
           .help = "bf16, awq, gptq, gptq8, gguf:TYPE, or what --quantization takes; several: one plan each"},
          {.name = "context", .kind = Kind::kInt, .value = "N", .shown = "--max-model-len", .help = "tokens of a request, prompt and answer", .least = 1, .most = 1e9},
          {.name = "concurrency", .kind = Kind::kInt, .value = "N", .fallback = "1", .help = "requests of that length at once", .least = 1, .most = 1e6},
          {.name = "bytes", .kind = Kind::kChoice, .value = "resident|stored", .fallback = "resident",
           .help = "what plugins will allocate, or the formulas of the formats alone"},
          {.name = "reserve", .kind = Kind::kList, .value = "context=BYTES,workspace=BYTES,graphs=BYTES", .shown = "512MiB, 96MiB, 256MiB",
           .help = "memory set aside for the driver's context, scratch space beside activations, and graphs"},
          {.name = "price", .kind = Kind::kList, .value = "DEVICE=PRICE", .help = "prices by which devices that fit are ranked"},
          {.name = "compare", .kind = Kind::kBool, .fallback = "false", .help = "every format, with 16-bit and with FP8 cache, over 2k to 128k tokens"},
          {.name = "plot", .kind = Kind::kPath, .value = "FILE.svg", .help = "draw memory against context"},
          {.name = "assert-fit", .kind = Kind::kBool, .fallback = "false", .help = "exit 6 when it does not fit (on any device named)"},
      }};
  return group;
}

constexpr std::int64_t kContexts[] = {2048, 4096, 8192, 16384, 32768, 65536, 131072};

// ---- what was asked for ----------------------------------------------------------------------------

std::vector<ArmName> arm_names(const Invocation& in) {
  const std::string kv = in.values.text("kv-cache-dtype");
  const bool compare = in.values.flag("compare");
  std::vector<std::string> formats = in.values.list("format");
  if (!in.values.text("quantization").empty()) {
    if (!formats.empty()) throw Error("E101", "both --format and --quantization").hint("they say the same; leave one out");
    if (!in.values.has("model") || compare) formats.push_back(in.values.text("quantization"));
  }
  const bool named = !formats.empty();
  if (compare && !named)
    for (const WeightFormat& f : known_formats())
      if (!f.gguf) formats.push_back(f.name);
  if (formats.empty()) formats.push_back("");
  std::vector<ArmName> out;
  for (const std::string& text : formats) {
    const auto plus = text.find('+');
    ArmName name{text.substr(0, plus), plus == text.npos ? kv : text.substr(plus + 1)};
    if (name.kv == "bf16") name.kv = "bfloat16";
    if (name.kv != "auto" && name.kv != "bfloat16" && name.kv != "float16" && name.kv != "float32" && name.kv != "fp8" && name.kv != "fp8_e4m3" && name.kv != "fp8_e5m2")
      throw Error("E101", "--format " + text + ": no KV cache is called \"" + name.kv + "\"").hint("bfloat16, float16, float32, fp8, fp8_e4m3 or fp8_e5m2 after the +");
    if (compare && plus == text.npos && !in.values.given("kv-cache-dtype")) {
      out.push_back({name.format, "bfloat16"});
      name.kv = "fp8";
    }
    out.push_back(std::move(name));
  }
  return out;
}

Card this_cpu(const Invocation& in) {
  const auto total = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  const int threads = static_cast<int>(in.values.integer("threads", std::max(1l, sysconf(_SC_NPROCESSORS_ONLN))));
  return {.name = "cpu", .label = "this CPU", .memory_bytes = total, .bandwidth = static_cast<std::int64_t>(read_bandwidth(threads))};
}

std::vector<Card> cards(const Invocation& in) {
  const std::string text = in.values.text("device");
  if (text == "auto" || text == "cpu") return {this_cpu(in)};
  if (text == "all") return {known_cards().begin(), known_cards().end()};
  if (text.starts_with("cuda"))
    throw Error("E402", "no usable GPU: this build does not ask the driver when it plans").hint("name the card, for example --device h100-sxm, or --device all for every one in the table");
  return parse_cards(text);
}

Reserve reserve(const Invocation& in, const Card& card) {
  Reserve r;
  if (card.sm == 0) r = {0, 0, 0};  // no driver, no graphs; activations are counted by themselves
  for (const std::string& part : in.values.list("reserve")) {
    const auto equals = part.find('=');
    const std::string key = part.substr(0, equals);
    const std::optional<long long> bytes = parse_integer(equals == part.npos ? "" : part.substr(equals + 1), true);
    std::int64_t* field = key == "context" ? &r.context : key == "workspace" ? &r.workspace : key == "graphs" ? &r.graphs : nullptr;
    if (!field || !bytes || *bytes < 0 || *bytes > (1ll << 50))
      throw Error("E101", "--reserve " + part + " is not context=BYTES, workspace=BYTES or graphs=BYTES").hint("for example --reserve context=300MiB,graphs=128MiB");
    *field = *bytes;
  }
  return r;
}

PlanInput plan_input(const Invocation& in, const PlanSource& source, const Arm& arm, const Card& card) {
  const Values& v = in.values;
  PlanInput p;
  p.shape = source.shape();
  p.weights = arm.weights;
  p.kv_bytes_per_token = arm.kv_bytes_per_token;
  p.kv_block_bytes = arm.kv_block_bytes;
  p.block_size = v.integer("block-size", 16);
  p.card = card;
  p.utilization = v.number("gpu-memory-utilization").value_or(0.92);
  p.reserve = reserve(in, card);
  p.max_num_seqs = v.integer("max-num-seqs", 256);
  p.max_num_batched_tokens = v.integer("max-num-batched-tokens", 2048);
  p.concurrency = v.integer("concurrency", 1);
  p.num_blocks = v.integer("num-gpu-blocks-override", 0);
  p.kv_memory_bytes = v.integer("kv-cache-memory-bytes", 0);
  // A start on a CPU takes no more than this by itself.
  if (card.sm == 0 && p.kv_memory_bytes == 0) p.kv_memory_bytes = std::min<std::int64_t>(4ll << 30, free_memory() > 0 ? free_memory() / 4 : card.memory_bytes / 4);
  const std::int64_t asked = v.has("max-model-len") ? v.integer("max-model-len", -1) : 0;
  p.max_model_len = asked > 0 ? asked : source.max_model_len();
  if (v.has("max-model-len") && asked <= 0) {  // auto: the longest that fits
    p.context = 1;
    p.max_model_len = std::clamp<std::int64_t>(longest_context(make_plan(p), p.concurrency), 1, source.max_model_len());
  }
  p.context = v.integer("context", p.max_model_len);
  return p;
}

// ---- figures as text -------------------------------------------------------------------------------

std::string fixed(double x, int digits) {
  char text[48];
  std::snprintf(text, sizeof text, "%.*f", digits, x);
  return text;
}

std::string gib(std::int64_t bytes) { return fixed(static_cast<double>(bytes) / 0x1p30, 2); }
std::string size(std::int64_t bytes) { return bytes >= 100ll << 20 || bytes < 0 ? gib(bytes) + " GiB" : size_text(static_cast<double>(bytes)); }
std::string both(std::int64_t bytes) { return size(bytes) + (bytes >= 100ll << 20 ? " (" + fixed(static_cast<double>(bytes) / 1e9, 2) + " GB)" : ""); }

std::string grouped(std::int64_t n) {
  std::string text = std::to_string(n);
  for (std::ptrdiff_t i = std::ssize(text) - 3; i > (n < 0 ? 1 : 0); i -= 3) text.insert(static_cast<std::size_t>(i), 1, ',');
  return text;
}

// ---- advice ----------------------------------------------------------------------------------------

bool fits(const PlanInput& in) { return make_plan(in).fits; }

// Every single change by which it would fit, and the pair of both formats when none is enough.
std::vector<std::string> advice(const Invocation& in, const PlanSource& source, const Arm& arm, const PlanInput& input) {
  const Plan plan = make_plan(input);
  std::vector<std::string> out;
  if (plan.fits) return out;
  out.push_back(both(plan.short_bytes) + " short");
  const std::size_t facts = out.size();
  if (const std::int64_t longest = longest_context(plan, input.concurrency); longest >= input.block_size && longest < input.context)
    out.push_back("--context " + std::to_string(longest) + ": the longest that fits" + (input.concurrency > 1 ? " " + std::to_string(input.concurrency) + " times" : ""));
  const std::int64_t each = plan.blocks_needed / input.concurrency;
  if (input.concurrency > 1 && plan.blocks >= each) out.push_back("--concurrency " + std::to_string(plan.blocks / each) + ": requests of this length that fit");

  const auto try_arm = [&](const ArmName& name) -> std::optional<PlanInput> {
    try {
      return plan_input(in, source, source.arm(name, input.card, arm.stored), input.card);
    } catch (const Error&) {
      return std::nullopt;  // nobody here makes it
    }
  };
  const bool wide = !arm.kv_narrow;
  if (wide)
    if (const auto other = try_arm({arm.name.format, "fp8"}); other && fits(*other)) out.push_back("--kv-cache-dtype fp8: half of the cache");
  for (std::int64_t seqs = input.max_num_seqs / 2; seqs >= 1; seqs /= 2) {
    PlanInput other = input;
    other.max_num_seqs = seqs;
    if (!fits(other)) continue;
    out.push_back("--max-num-seqs " + std::to_string(seqs));
    break;
  }
  for (std::int64_t tokens = input.max_num_batched_tokens / 2; tokens >= 64; tokens /= 2) {
    PlanInput other = input;
    other.max_num_batched_tokens = tokens;
    if (!fits(other)) continue;
    out.push_back("--max-num-batched-tokens " + std::to_string(tokens));
    break;
  }
  for (int percent = 1; percent <= 98; ++percent) {
    PlanInput other = input;
    other.utilization = percent / 100.0;
    if (other.utilization <= input.utilization || !fits(other)) continue;
    out.push_back("--gpu-memory-utilization " + fixed(other.utilization, 2));
    break;
  }
  // The widest format that is enough: the least is lost. Both counts stay as they were asked for.
  std::vector<const WeightFormat*> formats;
  for (const WeightFormat& f : known_formats())
    if (!f.gguf) formats.push_back(&f);
  std::ranges::stable_sort(formats, [](auto* a, auto* b) { return a->bits > b->bits; });
  int bits = arm.bits ? arm.bits : 17;
  const auto formats_with = [&](const std::string& kv, int most) {
    for (const WeightFormat* f : formats) {
      if (f->bits >= most || f->name == arm.name.format || out.size() > facts + 8) continue;
      const auto other = try_arm({f->name, kv});
      if (!other || !fits(*other)) continue;
      const std::string both_flags = kv == arm.name.kv ? "" : " --kv-cache-dtype " + kv;
      out.push_back((source.quantized() ? "the model in " + f->name : "--format " + f->name) + both_flags + ": " + f->label + ", " + both(other->weights.resident));
      most = static_cast<int>(f->bits);  // one a width
    }
  };
  formats_with(arm.name.kv, bits);
  if (out.size() == facts && wide) formats_with("fp8", bits);
  if (input.card.sm)
    for (const Card& c : known_cards()) {
      PlanInput other = input;
      other.card = c;
      if (c.memory_bytes <= input.card.memory_bytes || !fits(other)) continue;
      out.push_back("--device " + c.name + ": the smallest card of the table that holds it (needs " + gib(memory_needed(input)) + " GiB)");
      break;
    }
  if (out.size() == facts) out.push_back("no single change is enough: a smaller model, or several devices");
  return out;
}

// ---- one plan --------------------------------------------------------------------------------------

struct Planned {
  Arm arm;
  PlanInput input;
  Plan plan;
  std::vector<std::string> advice;
};

std::vector<std::pair<std::int64_t, std::int64_t>> points(const PlanInput& in) {
  std::vector<std::pair<std::int64_t, std::int64_t>> out{{1, 384}};
  if (in.concurrency != 1 || in.context != 384) out.emplace_back(in.concurrency, in.context);
  return out;
}

Json plan_json(const PlanSource& source, const Planned& p, bool layers) {
  const PlanInput& in = p.input;
  Json j;
  j["model"] = {{"name", source.shape().name}, {"architecture", source.architecture()}, {"layers", source.shape().layers}, {"params", source.shape().params()}, {"max_model_len", in.max_model_len}};
  j["format"] = p.arm.name.format.empty() ? "checkpoint" : p.arm.name.format;
  j["bytes"] = p.arm.stored ? "stored" : "resident";
  j["device"] = {{"name", in.card.name}, {"sm", in.card.sm}, {"memory_bytes", in.card.memory_bytes}, {"bandwidth_bytes_s", in.card.bandwidth}, {"fp8", in.card.fp8}, {"fp4", in.card.fp4}};
  j["budget"] = {{"utilization", in.utilization}, {"requested", p.plan.requested}, {"weights", p.plan.weights}, {"context", p.plan.context}, {"workspace", p.plan.workspace},
                 {"graphs", p.plan.graphs}, {"kv_available", p.plan.kv_available}, {"load_temp", p.plan.load_temp}, {"load_peak", p.plan.load_peak}};
  j["by_plugin"] = p.arm.by_plugin;
  j["by_owner"] = p.arm.by_owner;
  j["kv"] = {{"dtype", p.arm.kv_dtype}, {"bytes_per_token", p.plan.bytes_per_token}, {"block_size", p.plan.block_size}, {"block_bytes", p.plan.block_bytes}, {"blocks", p.plan.blocks},
             {"tokens", p.plan.tokens}, {"max_concurrency", std::round(p.plan.max_concurrency * 100) / 100}, {"needed_bytes", p.plan.kv_needed}};
  Json read = Json::object(), tok_s = Json::object(), bound = Json::object();
  for (const auto& [c, ctx] : points(in)) {
    const std::string at = "c=" + std::to_string(c) + ",ctx=" + std::to_string(ctx);
    const Ceiling top = ceiling(in, c, ctx);
    read[at] = read_bytes(in, c, ctx);
    tok_s[at] = top.tok_s;
    bound[at] = top.compute_bound ? "compute" : "memory";
  }
  j["read_bytes"] = read;
  j["ceiling_tok_s"] = tok_s;
  j["bound"] = bound;
  j["fits"] = p.plan.fits;
  if (p.plan.fits) j["spare_bytes"] = p.plan.spare_bytes;
  else j["short_bytes"] = p.plan.short_bytes;
  j["memory_needed_bytes"] = memory_needed(in);
  j["layers"] = layers ? p.arm.layers : Json::array();
  j["advice"] = p.advice;
  j["notes"] = p.arm.notes;
  return j;
}

std::string plan_text(const PlanSource& source, const Planned& p) {
  const PlanInput& in = p.input;
  std::string out = source.shape().name + " (" + fixed(static_cast<double>(source.shape().params()) / 1e9, 2) + " B parameters), weights " + (p.arm.name.format.empty() ? "as they are" : p.arm.name.format) +
                    ", cache " + p.arm.kv_dtype + ", on " + in.card.label + " (" + both(in.card.memory_bytes) + ", " + fixed(static_cast<double>(in.card.bandwidth) / 1e9, in.card.bandwidth < 100e9 ? 1 : 0) + " GB/s)\n\n";
  std::vector<std::vector<std::string>> rows;
  const auto row = [&](const std::string& what, std::int64_t bytes, const std::string& why = "") { rows.push_back({what, size(bytes), grouped(bytes) + " B", why}); };
  row("budget", p.plan.requested, fixed(in.utilization * 100, 0) + " % of the memory");
  row("weights", p.plan.weights, p.arm.stored ? "stored: by formula" : "resident: as the plugins plan");
  for (const auto& [owner, bytes] : (p.arm.by_plugin.empty() ? p.arm.by_owner : p.arm.by_plugin).items())
    if (bytes.get<std::int64_t>() > 0) row("  " + owner, bytes.get<std::int64_t>());
  if (p.plan.context) row("context", p.plan.context, "driver, modules, handles");
  row("workspace", p.plan.workspace, std::to_string(in.max_num_batched_tokens) + " tokens a step, " + std::to_string(in.max_num_seqs) + " sequences");
  if (p.plan.graphs) row("graphs", p.plan.graphs);
  row("left for the KV cache", p.plan.kv_available, grouped(p.plan.bytes_per_token) + " B a token");
  row("peak while loading", p.plan.load_peak, p.plan.load_temp ? "weights, context and one layer of " + size(p.plan.load_temp) : "weights and context: layers are packed from the mapped file");
  out += table(rows) + "\n";
  out += "KV cache: " + grouped(p.plan.tokens) + " tokens in blocks of " + std::to_string(p.plan.block_size) + "; maximum concurrency for " + grouped(in.max_model_len) + " tokens per request: " + fixed(p.plan.max_concurrency, 2) + "x\n";
  for (const auto& [c, ctx] : points(in)) {
    const Ceiling top = ceiling(in, c, ctx);
    out += "ceiling at " + std::to_string(c) + " x " + grouped(ctx) + " tokens: " + fixed(top.tok_s, 1) + " tok/s (a step reads " + size(read_bytes(in, c, ctx)) + (top.compute_bound ? "; bound by arithmetic" : "") + ")\n";
  }
  const std::string asked = std::to_string(in.concurrency) + " x " + grouped(in.context) + " tokens";
  out += p.plan.fits ? "fits: " + asked + " and " + size(p.plan.spare_bytes) + " spare\n" : "does not fit: " + asked + " need a device of " + size(memory_needed(in)) + "\n";
  for (const std::string& a : p.advice) out += "  " + a + "\n";
  for (const std::string& n : p.arm.notes) out += "note: " + n + "\n";
  return out;
}

// ---- several ---------------------------------------------------------------------------------------

struct CrossingRow {
  std::string a, b;
  std::int64_t tokens;
};

// The arms of one card: from how many tokens on the one that begins smaller needs more.
std::vector<CrossingRow> crossings(const std::vector<const Planned*>& arms) {
  std::vector<CrossingRow> out;
  for (const Planned* a : arms)
    for (const Planned* b : arms)
      if (const auto at = crossover(a->plan.weights, a->plan.bytes_per_token, b->plan.weights, b->plan.bytes_per_token)) out.push_back({a->arm.label(), b->arm.label(), *at});
  std::ranges::stable_sort(out, {}, &CrossingRow::tokens);
  return out;
}

std::int64_t total_at(const Planned& p, std::int64_t tokens) {
  return p.plan.weights + p.plan.context + p.plan.workspace + p.plan.graphs + (tokens + p.plan.block_size - 1) / p.plan.block_size * p.plan.block_bytes;
}

// The arm that needs least, by stretch of tokens held: [from, next).
std::vector<std::pair<std::int64_t, const Planned*>> cheapest(const std::vector<const Planned*>& arms) {
  std::vector<std::pair<std::int64_t, const Planned*>> out;
  const auto least = [&](std::int64_t tokens) {
    return *std::ranges::min_element(arms, {}, [&](const Planned* p) { return std::pair(p->plan.weights + tokens * p->plan.bytes_per_token, p->plan.bytes_per_token); });
  };
  std::vector<std::int64_t> at{0};
  for (const CrossingRow& c : crossings(arms)) at.push_back(c.tokens + 1);
  for (const std::int64_t t : at)
    if (const Planned* p = least(t); out.empty() || out.back().second != p) out.emplace_back(t, p);
  return out;
}

std::map<std::string, double> prices(const Invocation& in) {
  std::map<std::string, double> out;
  for (const std::string& part : in.values.list("price")) {
    const auto equals = part.find('=');
    const std::optional<double> price = parse_number(equals == part.npos ? "" : part.substr(equals + 1));
    if (!price || !(*price >= 0)) throw Error("E101", "--price " + part + " is not DEVICE=PRICE").hint("for example --price l40s=0.9,h100-sxm=2.5; any currency, by the hour or to buy");
    out[part.substr(0, equals)] = *price;
  }
  return out;
}

// Devices that hold the first arm: by price where given, then by ceiling; without prices the smallest first.
std::vector<const Planned*> ranking(const Invocation& in, const std::vector<Planned>& plans) {
  const auto price = prices(in);
  std::vector<const Planned*> fit;
  for (const Planned& p : plans)
    if (p.plan.fits && p.arm.label() == plans.front().arm.label()) fit.push_back(&p);
  std::ranges::stable_sort(fit, {}, [&](const Planned* p) {
    const auto at = price.find(p->input.card.name);
    return std::tuple(at == price.end() ? INFINITY : at->second, price.empty() ? p->input.card.memory_bytes : 0, -ceiling(p->input, p->input.concurrency, p->input.context).tok_s);
  });
  return fit;
}

std::string compare_text(const std::vector<const Planned*>& arms) {
  const PlanInput& in = arms.front()->input;
  std::vector<std::vector<std::string>> rows{{"weights + cache", "weights GiB", "KV B/token"}};
  for (const std::int64_t c : kContexts) rows[0].push_back(std::to_string(c / 1024) + "k");
  for (const char* title : {"KV tokens", "tok/s", "fits"}) rows[0].push_back(title);
  for (const Planned* p : arms) {
    std::vector<std::string> row{p->arm.label(), gib(p->plan.weights), std::to_string(p->plan.bytes_per_token)};
    for (const std::int64_t c : kContexts) row.push_back(gib(total_at(*p, c)));
    row.push_back(grouped(p->plan.tokens));
    row.push_back(fixed(ceiling(p->input, p->input.concurrency, p->input.context).tok_s, 1));
    row.push_back(p->plan.fits ? "yes" : "no, " + gib(p->plan.short_bytes) + " GiB short");
    rows.push_back(std::move(row));
  }
  std::string out = "GiB in all at so many tokens held, on " + in.card.label + " (budget " + gib(make_plan(in).requested) + " GiB); speed ceiling and fit for " + std::to_string(in.concurrency) + " x " +
                    grouped(in.context) + " tokens\n" + table(rows) + "\n";
  for (const auto& [from, p] : cheapest(arms)) out += "least memory from " + grouped(from) + " tokens on: " + p->arm.label() + "\n";
  std::string shown;  // for each arm the first that overtakes it
  for (const CrossingRow& c : crossings(arms)) {
    // The pair that people ask about: few bits with a wide cache against 8 bits with a narrow one.
    const auto bits = [&](const std::string& name) { return (*std::ranges::find_if(arms, [&](const Planned* p) { return p->arm.label() == name; }))->arm.bits; };
    if (arms.size() > 6 && !(bits(c.a) < 8 && bits(c.b) == 8)) continue;
    if (arms.size() > 6 && shown.find("<" + c.a + ">") != shown.npos) continue;
    shown += "<" + c.a + ">";
    out += "beyond " + grouped(c.tokens) + " tokens held, " + c.a + " needs more than " + c.b + "\n";
  }
  return out;
}

std::string devices_text(const Invocation& in, const std::vector<Planned>& plans) {
  std::vector<std::vector<std::string>> rows{{"device", "memory GiB", "weights + cache", "weights GiB", "KV tokens", "concurrency", "tok/s", "fits"}};
  for (const Planned& p : plans)
    rows.push_back({p.input.card.label, gib(p.input.card.memory_bytes), p.arm.label(), gib(p.plan.weights), grouped(p.plan.tokens), fixed(p.plan.max_concurrency, 2) + "x",
                    fixed(ceiling(p.input, p.input.concurrency, p.input.context).tok_s, 1), p.plan.fits ? "yes, " + gib(p.plan.spare_bytes) + " GiB spare" : "no, " + gib(p.plan.short_bytes) + " GiB short"});
  std::string out = table(rows);
  const auto ranked = ranking(in, plans);
  if (!ranked.empty()) out += std::string("\n") + (prices(in).empty() ? "smallest device that holds it: " : "cheapest device that holds it: ") + ranked.front()->input.card.label + "\n";
  else out += "\nno device named holds it; it needs one of " + gib(memory_needed(plans.front().input)) + " GiB\n";
  return out;
}

void write_plot(const std::string& file, const PlanSource& source, const std::vector<Planned>& plans) {
  std::vector<PlotLine> lines;
  std::vector<PlotLevel> levels;
  for (const Planned& p : plans) {
    const std::string level = p.input.card.label + ", " + fixed(p.input.utilization * 100, 0) + " %";
    if (std::ranges::none_of(levels, [&](const PlotLevel& l) { return l.label == level; })) levels.push_back({level, static_cast<double>(p.plan.requested) / 0x1p30});
    if (p.input.card.name != plans.front().input.card.name) continue;  // lines differ by a constant at most
    PlotLine line{p.arm.label(), {}};
    for (const std::int64_t c : kContexts) line.points.emplace_back(c, static_cast<double>(total_at(p, c)) / 0x1p30);
    lines.push_back(std::move(line));
  }
  std::ofstream out(file, std::ios::binary);
  out << plot_svg(source.shape().name + ": memory against context", lines, levels);
  out.close();
  if (!out) throw Error("E101", "cannot write " + file).hint("--plot FILE.svg");
}

int run(const Invocation& in) {
  if (in.values.integer("tensor-parallel-size", 1) != 1)
    throw Error("E101", "--tensor-parallel-size " + in.values.text("tensor-parallel-size") + ": a plan is for one device").hint("leave it out; several names in --device are planned one by one");
  const PlanSource source(in);
  const std::vector<ArmName> names = arm_names(in);
  const std::vector<Card> devices = cards(in);
  const bool stored = in.values.text("bytes") == "stored", compare = in.values.flag("compare");

  std::vector<Planned> plans;
  std::vector<std::pair<std::string, std::string>> skipped;
  for (const Card& card : devices)
    for (const ArmName& name : names) {
      std::optional<Arm> arm;
      try {
        arm = source.arm(name, card, stored);
      } catch (const Error& e) {
        if (!compare) throw;  // one of many may be beyond what is installed
        if (&card == &devices.front()) skipped.emplace_back(name.format + " + " + name.kv, e.message());
        continue;
      }
      PlanInput input = plan_input(in, source, *arm, card);
      const Plan plan = make_plan(input);
      std::vector<std::string> tips = compare || devices.size() > 1 ? std::vector<std::string>() : advice(in, source, *arm, input);
      plans.push_back({std::move(*arm), std::move(input), plan, std::move(tips)});
    }
  if (plans.empty()) throw Error("E304", "no arm of the comparison could be planned").from(skipped.front().second).hint("--bytes stored needs no plugins");
  if (in.values.has("plot")) write_plot(in.values.text("plot"), source, plans);

  const auto on = [&](const Card& card) {
    std::vector<const Planned*> out;
    for (const Planned& p : plans)
      if (p.input.card.name == card.name && p.input.card.memory_bytes == card.memory_bytes) out.push_back(&p);
    return out;
  };
  if (in.json()) {
    Json doc = json_document(in.command);
    if (plans.size() == 1 && !compare) {
      doc.update(plan_json(source, plans.front(), true));
    } else {
      for (const Planned& p : plans) doc["plans"].push_back(plan_json(source, p, false));
      Json& list = doc["crossings"] = Json::array();
      for (const CrossingRow& c : crossings(on(devices.front()))) list.push_back({{"a", c.a}, {"b", c.b}, {"tokens", c.tokens}});
      Json& least = doc["cheapest"] = Json::array();
      for (const auto& [from, p] : cheapest(on(devices.front()))) least.push_back({{"from_tokens", from}, {"arm", p->arm.label()}});
      Json& totals = doc["totals"] = Json::array();
      for (const Planned* p : on(devices.front())) {
        Json bytes = Json::object();
        for (const std::int64_t c : kContexts) bytes[std::to_string(c)] = total_at(*p, c);
        totals.push_back({{"arm", p->arm.label()}, {"bytes", bytes}});
      }
      Json& ranked = doc["devices_that_fit"] = Json::array();
      for (const Planned* p : ranking(in, plans)) ranked.push_back(p->input.card.name);
      Json& left_out = doc["skipped"] = Json::array();
      for (const auto& [arm, why] : skipped) left_out.push_back({{"arm", arm}, {"reason", why}});
    }
    print_json(doc);
  } else {
    std::string out;
    if (compare || (names.size() > 1 && devices.size() == 1))
      for (const Card& card : devices) out += (out.empty() ? "" : "\n") + compare_text(on(card));
    else if (plans.size() > 1) out = devices_text(in, plans);
    else out = plan_text(source, plans.front());
    for (const auto& [arm, why] : skipped) out += "left out " + arm + ": " + why + "\n";
    print(out);
  }
  if (in.values.flag("assert-fit") && std::ranges::any_of(plans, [](const Planned& p) { return !p.plan.fits; })) return 6;
  return 0;
}

}  // namespace

extern const Command plan_command;
const Command plan_command = {
    .name = "plan",
    .summary = "bytes, KV tokens and speed ceiling on a card, before anything is loaded",
    .usage = {"MODEL --device h200,rtx4090", "--shape llama-3.3-70b --format fp8 --kv-cache-dtype fp8 --device h100-sxm --context 8192", "--shape qwen3-8b --compare --device l40s --plot memory.svg"},
    .details = "A device is a name of the table (all: every one), or sm=89,mem=8188MiB,bw=256GB/s; without one, this CPU.\n",
    .groups = with_model_groups({&plan_settings()}),
    .defaults = {{"log-level", "error"}},
    .positional = "model",
    .run = run,
};

}  // namespace qengine
