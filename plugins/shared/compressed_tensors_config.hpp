// The quantization_config of compressed-tensors checkpoints, as data: groups of modules, how each stores
// its weights and rounds its activations, and which modules are left alone. Several plugins read it, each
// for the schemes that are its own.
//
// Reading never fails half-way: what cannot be honoured at all is in `problem`, one line that names the
// key, the value found and the values supported. Whether a scheme is one a plugin multiplies is the plugin's.
//
// Source: vllm-project/compressed-tensors, quantization/quant_config.py, quant_args.py, quant_scheme.py.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "shared/config_view.hpp"

namespace qengine::packed {

struct QuantArgs {
  enum class Strategy { kTensor, kChannel, kGroup, kBlock, kToken, kTensorGroup, kAttnHead };
  enum class Dynamic { kNo, kYes, kLocal };
  enum class Actorder { kNone, kGroup, kWeight };  // kWeight: the columns are in plain order, nothing to do

  int num_bits = 8;
  bool is_float = false;  // type: int | float
  bool symmetric = true;
  std::int64_t group_size = 0;  // 0: not given; -1: the whole row
  Strategy strategy = Strategy::kTensor;
  std::array<std::int64_t, 2> block = {0, 0};  // rows, inputs of kBlock
  Dynamic dynamic = Dynamic::kNo;
  Actorder actorder = Actorder::kNone;
  std::string scale_dtype, zp_dtype;  // "" = not given
};

struct CompressedTensorsGroup {
  std::string name;                // "group_0"
  std::vector<std::string> targets;
  std::string format;              // its own, else the file's
  std::optional<QuantArgs> weights, input, output;
};

struct CompressedTensorsConfig {
  std::string format;
  std::string status;  // quantization_status
  std::vector<CompressedTensorsGroup> groups;
  std::vector<std::string> ignore;
  std::string problem;  // "" = all of it was understood

  // REQUIRES: quant_method is compressed-tensors.
  static CompressedTensorsConfig read(qe_cfg cfg);

  // The rule of `ignore` that names this module, or nullptr.
  const std::string* ignored(std::string_view name, int role) const;
  // The group that a module belongs to: one that names it before one that names its class. nullptr: none.
  const CompressedTensorsGroup* group_of(std::string_view name, int role) const;
};

// Targets and ignore entries are exact names, "re:" patterns or class names; an embedding is not a Linear.
bool names_module(const std::string& entry, std::string_view name, int role);
bool is_class_name(std::string_view entry);

// "W4A16_ASYM" and its like, for configs that name a preset instead of spelling the scheme out.
std::optional<CompressedTensorsGroup> preset_scheme(std::string_view name);

const char* strategy_text(QuantArgs::Strategy);

}  // namespace qengine::packed
