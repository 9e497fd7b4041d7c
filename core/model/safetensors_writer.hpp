// SafetensorsWriter: a .safetensors file, written front to back without holding a tensor in memory.
//
// All names, dtypes and shapes are known first (the header comes first in the file); then the bytes
// of each tensor follow in that order, in pieces of any size. The file appears under its name only
// once it is whole: written beside it, flushed to the disk, renamed. A writer destroyed before
// finish() leaves nothing behind.
//
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace qengine {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // "F32", "BF16", "F8_E4M3", "I32", ...
  std::vector<std::int64_t> shape;
};

class SafetensorsWriter {
 public:
  // Throws Error E108 when the file cannot be written (no folder, no space, no permission).
  SafetensorsWriter(std::filesystem::path file, std::vector<SafetensorsEntry> entries,
                    const std::vector<std::pair<std::string, std::string>>& metadata = {});
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // The next bytes, running on from one tensor into the next. REQUIRES: no more than the entries hold.
  void write(std::span<const std::byte> bytes);
  void write(std::span<const float> values) { write(std::as_bytes(values)); }

  // Flushes and renames. REQUIRES: every byte was written.
  void finish();

  std::uint64_t bytes_left() const;  // of the tensors

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Any other file written the same way: whole under its name, or not at all. Throws Error E108.
void write_file_safely(const std::filesystem::path& file, std::string_view content);

// Rounded to nearest, ties to even; NaN stays NaN.
std::uint16_t bf16_from_float(float x);

}  // namespace qengine
