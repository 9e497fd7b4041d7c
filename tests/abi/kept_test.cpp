// Binaries of every served minor, built by gcc and clang and kept: they load in this host and compute what they always did. And what is
// said to plugins of another minor or major.
#include <gtest/gtest.h>

#include "core/base/thread_pool.hpp"
#include "tests/core/plugin_host/toys.hpp"

namespace qengine::test {
namespace {

fs::path kept() { return source_dir() / "tests/abi/kept"; }

// A kept file with its manifest, alone in a folder.
void put(const fs::path& folder, const fs::path& library, const std::string& id, const std::string& name, const std::string& version) {
  fs::copy_file(library, folder / library.filename());
  spit(folder / (library.stem().string() + ".qeplugin.toml"), "schema = 1\nid = \"" + id + "\"\nname = \"" + name + "\"\nversion = \"" + version + "\"\nlibrary = \"" + library.filename().string() +
                                                                   "\"\nsha256 = \"" + sha256_of(slurp(library)) + "\"\nabi = { major = 0, built = 1, needs = 1 }\n");
}

TEST(Kept, EveryBinaryIsTheOneThatWasKept) {
  std::ifstream sums(kept() / "SHA256SUMS");
  int n = 0;
  for (std::string sha, file; sums >> sha >> file; ++n) EXPECT_EQ(sha256_of(slurp(kept() / file)), sha) << file << " was built again: keep the old one, add a new one";
  int there = 0;
  std::uintmax_t bytes = 0;
  for (const auto& f : fs::recursive_directory_iterator(kept()))
    if (f.path().extension() == ".so") ++there, bytes += f.file_size();
  EXPECT_EQ(n, there);
  EXPECT_GE(n, 6);
  EXPECT_LT(bytes, 1000u * 1000u);
}

TEST(Kept, WeightPluginsOfEveryMinorComputeWhatTheyDid) {
  int tried = 0;
  for (const auto& f : fs::recursive_directory_iterator(kept())) {
    if (f.path().extension() != ".so" || !f.path().filename().string().starts_with("toy-")) continue;
    SCOPED_TRACE(f.path().string());
    ++tried;
    const Folder folder;
    put(folder.path(), f.path(), "test.toy", "toy", "1.2.3");
    for (const char* name : {"bf16_ref.so", "bf16_ref.qeplugin.toml"}) fs::copy_file(binary_dir() / "bin/plugins" / name, folder.path() / name);
    const auto host = host_of(folder.path());
    ASSERT_NE(host->find("toy"), nullptr) << (host->refused().empty() ? "" : host->refused()[0].reason);
    const ModelConfig config = toy_config();
    const auto plan = FormatPlan::make(*host, toy_model(config), config, {});
    ThreadPool pool(2);
    for (std::size_t i = 0; i < 8; ++i) {
      const LayerSpec& spec = plan->layers()[i];
      const auto linear = plan->load(i, pool);
      std::vector<float> w(static_cast<std::size_t>(linear->n() * linear->k())), in(static_cast<std::size_t>(linear->k()), 0.0f), out(static_cast<std::size_t>(linear->n()));
      linear->dequant(0, linear->n(), w.data());
      in[3] = 1;
      linear->run(in.data(), linear->k(), out.data(), linear->n(), 1);
      std::size_t row = 0;
      for (const PartSpec& p : spec.parts)
        for (std::size_t n = 0; n < static_cast<std::size_t>(p.n); ++n, ++row) {
          const auto k = static_cast<std::size_t>(spec.k);
          for (std::size_t c = 0; c < k; ++c) ASSERT_EQ(w[row * k + c], toy_scale(n) * static_cast<float>(toy_code(p.name, n * k + c)));
          ASSERT_EQ(out[row], w[row * k + 3]);
        }
    }
  }
  EXPECT_GE(tried, 2);
}

TEST(Kept, KvPluginsOfEveryMinorLoad) {
  int tried = 0;
  for (const auto& f : fs::recursive_directory_iterator(kept())) {
    if (f.path().extension() != ".so" || !f.path().filename().string().starts_with("toy_kv-")) continue;
    SCOPED_TRACE(f.path().string());
    ++tried;
    const Folder folder;
    put(folder.path(), f.path(), "test.toy_kv", "toy_kv", "1.2.3");
    const auto host = host_of(folder.path());
    const Plugin* p = host->find("toy_kv");
    ASSERT_NE(p, nullptr) << (host->refused().empty() ? "" : host->refused()[0].reason);
    EXPECT_NE(p->kv, nullptr);
  }
  EXPECT_GE(tried, 2);
}

// Made with the C++ layer of the SDK, whose templates are then compiled into them. What they compute is the conformance kit's affair.
TEST(Kept, SdkPluginsOfEveryMinorLoad) {
  int tried = 0;
  for (const auto& f : fs::recursive_directory_iterator(kept())) {
    if (f.path().extension() != ".so" || !f.path().filename().string().starts_with("sdk_")) continue;
    SCOPED_TRACE(f.path().string());
    ++tried;
    const Folder folder;
    fs::copy_file(f.path(), folder.path() / f.path().filename());
    const std::string manifest = f.path().stem().string() + ".qeplugin.toml";
    fs::copy_file(f.path().parent_path() / manifest, folder.path() / manifest);
    const auto host = host_of(folder.path());
    const Plugin* p = host->find("sdk_w4");
    ASSERT_NE(p, nullptr) << (host->refused().empty() ? "" : host->refused()[0].reason);
    EXPECT_NE(p->weight, nullptr);
  }
  EXPECT_GE(tried, 2);
}

struct Other {
  const char* variant;
  const char* abi;
  const char* text;
};

TEST(Kept, PluginsOfAnotherAbiAreToldExactlyWhatIsWrong) {
  const Other cases[] = {
      {"toy_needs_more", "{ major = 0, built = 99, needs = 99 }",
       "E301 test.toy needs plugin ABI 0.99; this qengine serves 0.1\n  in    FILE\n  hint  update qengine, or use a build of the plugin for ABI 0.1"},
      {"toy_major", "{ major = 9, built = 1, needs = 1 }",
       "E301 test.toy needs plugin ABI 9.1; this qengine serves 0.1\n  in    FILE\n  hint  update qengine, or use a build of the plugin for ABI 0.1"},
      {"toy_too_old", "{ major = 0, built = 0, needs = 0 }",
       "E301 test.toy was built for plugin ABI 0.0; this qengine serves 0.1\n  in    FILE\n  hint  use a build of the plugin for ABI 0.1"},
      {"toy_not_for_me", "{ major = 0, built = 1, needs = 1 }",
       "E301 test.toy has no interface for plugin ABI 0.1, though its manifest says 0.1\n  in    FILE\n  hint  use a build of the plugin for ABI 0.1"},
  };
  for (const Other& c : cases) {
    SCOPED_TRACE(c.variant);
    const Folder folder;
    install(folder.path(), c.variant, {.abi = c.abi});
    const auto host = host_of(folder.path());
    ASSERT_EQ(host->refused().size(), 1u);
    std::string want = c.text;
    want.replace(want.find("FILE"), 4, (folder.path() / (std::string(c.variant) + ".so")).string());
    EXPECT_EQ(host->refused()[0].reason, want);
  }
}

// Built for a later minor, needing none of it: loaded. Its structs may be longer than ours.
TEST(Kept, ANewerMinorThatNeedsNothingNewIsLoaded) {
  for (const char* variant : {"toy_built_newer", "toy_longer"}) {
    const Folder folder;
    install(folder.path(), variant, {.abi = "{ major = 0, built = 99, needs = 1 }"});
    EXPECT_NE(host_of(folder.path())->find("toy"), nullptr) << variant;
  }
}

}  // namespace
}  // namespace qengine::test
