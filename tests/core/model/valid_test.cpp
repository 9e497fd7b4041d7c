// Good checkpoints of every kind open, and their fields come out as config.json or the metadata say.
#include <gtest/gtest.h>
#include <qe/plugin.h>

#include "core/base/error.hpp"
#include "core/model/config.hpp"
#include "tests/support/paths.hpp"

namespace qengine {
namespace {

std::vector<std::string> all_models() {
  std::vector<std::string> out;
  const auto base = test::fixture("tiny-qwen3");
  if (base.empty()) return out;
  const auto root = base.parent_path();
  for (const char* below : {"", "reports", "gguf", "reports/gguf"}) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(root / below, error)) {
      const auto name = (std::filesystem::path(below) / entry.path().filename()).string();
      if (entry.path().extension() == ".gguf" || std::filesystem::exists(entry.path() / "model.safetensors") ||
          std::filesystem::exists(entry.path() / "model.safetensors.index.json"))
        out.push_back(name);
    }
  }
  return out;
}

TEST(Models, AllFixturesOpen) {
  const auto names = all_models();
  if (names.empty()) GTEST_SKIP() << "no fixtures";
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    try {
      const auto checkpoint = Checkpoint::open(test::fixture(name));
      const ModelConfig config = read_model_config(*checkpoint);
      EXPECT_GT(config.num_layers, 0);
      EXPECT_FALSE(checkpoint->tensors().empty());
      EXPECT_EQ(rope_inv_freq(config, nullptr).size(), static_cast<std::size_t>(config.rope.rot_dim / 2));
      for (const Tensor& t : checkpoint->tensors()) {
        EXPECT_EQ(checkpoint->data(t).size(), t.bytes) << t.name;
        EXPECT_EQ(checkpoint->find(t.name), &t);
      }
    } catch (const Error& e) {
      ADD_FAILURE() << e.what();
    }
  }
}

}  // namespace
}  // namespace qengine
