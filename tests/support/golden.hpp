// Golden values beside a fixture: NAME/golden.json and the tensors of NAME/golden.safetensors.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace qengine::test {

struct Golden {
  nlohmann::json json;
  std::map<std::string, std::vector<float>> tensors;  // F32 ones

  // `base`: a model folder, or a .gguf file with NAME.golden.* beside it.
  static Golden read(const std::filesystem::path& base) {
    const bool folder = std::filesystem::is_directory(base);
    const auto named = [&](const char* ext) {
      return folder ? base / (std::string("golden") + ext) : base.parent_path() / (base.stem().string() + ".golden" + ext);
    };
    Golden g;
    std::ifstream(named(".json")) >> g.json;
    std::ifstream in(named(".safetensors"), std::ios::binary);
    if (!in) return g;
    std::uint64_t n = 0;
    in.read(reinterpret_cast<char*>(&n), 8);
    std::string header(n, 0);
    in.read(header.data(), static_cast<std::streamsize>(n));
    const auto list = nlohmann::json::parse(header);
    for (const auto& [name, t] : list.items()) {
      if (name == "__metadata__" || t["dtype"] != "F32") continue;
      const std::uint64_t begin = t["data_offsets"][0], end = t["data_offsets"][1];
      std::vector<float> x((end - begin) / 4);
      in.seekg(static_cast<std::streamoff>(8 + n + begin));
      in.read(reinterpret_cast<char*>(x.data()), static_cast<std::streamsize>(end - begin));
      g.tensors[name] = std::move(x);
    }
    return g;
  }
};

}  // namespace qengine::test
