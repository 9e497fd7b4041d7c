// What a GPTQ checkpoint's configuration says: the base parameters, the rules that change them for single
// modules, and which of the packings is on disk. Reads GPTQ, AutoGPTQ, GPTQModel, the first Marlin files and
// AutoRound. What it says is believed only as far as the tensors agree (format.hpp).
//
// Reading never fails half-way: `problem` is one line that names the key, the value and what is supported.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "shared/config_view.hpp"

namespace qengine::gptq {

enum class DiskFormat { kGptq, kGptqV2, kPlanar, kMarlin };
const char* disk_format_text(DiskFormat);

// The parameters of one module.
struct Parameters {
  int bits = 0;
  std::int64_t group_size = 0;  // -1: one group
  bool sym = true;
  bool sym_given = false;  // else `sym` is the default, which old asymmetric files do not contradict
  bool desc_act = false;
};

struct Config {
  enum class Dialect { kGptq, kAutoRound };

  Dialect dialect = Dialect::kGptq;
  DiskFormat format = DiskFormat::kGptq;
  Parameters base;
  bool lm_head = false;
  std::vector<std::string> only;  // modules_in_block_to_quantize: nothing else is
  std::string problem;

  // A rule of `dynamic` or AutoRound's extra_config, in the order in which rules are asked.
  struct Rule {
    std::string pattern;  // for the host's matcher
    std::string written;  // as in the file, for texts
    std::string path;     // where its overrides lie in the configuration
    bool negative = false;
  };
  std::vector<Rule> rules;

  // REQUIRES: quant_method is gptq, marlin, auto-round or intel/auto-round.
  static Config read(qe_cfg cfg);

  struct Answer {
    Parameters parameters;
    std::string not_quantized;  // the rule that says so, "" when none does
    std::string problem;        // a rule with a value nobody can honour
  };
  // What the configuration says about one module, rules included; tensors have not been asked.
  Answer module(qe_cfg cfg, std::string_view name, int role) const;
};

}  // namespace qengine::gptq
