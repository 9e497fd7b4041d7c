// What export and requantize share: the names and shapes of a model's tensors, its config and tokenizer
// as files, and a folder that appears only when it is whole.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "apps/qengine/command.hpp"
#include "apps/qengine/model_setup.hpp"

namespace qengine {

// Tensors that core itself reads: norms and biases, with their shapes.
struct DenseTensor {
  std::string name;
  std::vector<std::int64_t> shape;
};
std::vector<DenseTensor> dense_tensors(const OpenModel& m);

bool has_role(const FormatPlan& plan, int role);

// config.json of the written model: the checkpoint's own without a word about quantization.
Json written_config(const OpenModel& m, bool bf16);
std::string pretty(const Json& j);

void write_tokenizer(const Invocation& in, const OpenModel& m, const std::filesystem::path& folder);

// --output, made under another name; commit() gives it its own. Destroyed before: nothing is left.
class OutputFolder {
 public:
  // Throws Error E101 without --output, E108 when the folder is there already or cannot be made.
  explicit OutputFolder(const Invocation& in);
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  const std::filesystem::path& path() const { return temporary_; }  // where to write
  const std::filesystem::path& name() const { return folder_; }
  void commit();

 private:
  std::filesystem::path folder_, temporary_;
};

}  // namespace qengine
