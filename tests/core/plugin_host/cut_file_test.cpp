// A file that is cut while it is mapped ends the program with its name and the exit code of checkpoints.
#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>
#include <thread>

#include "core/model/file_bytes.hpp"
#include "core/plugin_host/call.hpp"
#include "tests/support/files.hpp"

namespace qengine {
namespace {

constexpr std::size_t kBytes = 1 << 20;

int sum(const FileBytes& file) {
  const auto bytes = file.bytes();
  return std::accumulate(bytes.begin(), bytes.end(), 0, [](int s, std::byte b) { return s + std::to_integer<int>(b); });
}

TEST(CutFile, EndsWithItsName) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const test::TempDir dir;
  const auto cut_and_read = [&](bool elsewhere) {
    install_cut_file_handler();
    dir.write("a.safetensors", std::string(kBytes, 'x'));
    dir.write("b.safetensors", std::string(kBytes, 'y'));
    const FileBytes a = FileBytes::map(dir.path() / "a.safetensors"), b = FileBytes::map(dir.path() / "b.safetensors");
    std::filesystem::resize_file(dir.path() / "b.safetensors", 4096);
    if (elsewhere) std::thread([&] { sum(b); }).join();
    exit(sum(a) + sum(b) == 0);
  };
  EXPECT_EXIT(cut_and_read(false), ::testing::ExitedWithCode(3), "E201 .*b.safetensors became shorter while it was being read");
  EXPECT_EXIT(cut_and_read(true), ::testing::ExitedWithCode(3), "E201 .*b.safetensors became shorter while it was being read");
}

TEST(CutFile, AddressesBelongToTheFileTheyLieIn) {
  const test::TempDir dir;
  dir.write("a", std::string(5000, 'x'));
  dir.write("b", std::string(5000, 'y'));
  const void* gone;
  {
    FileBytes a = FileBytes::map(dir.path() / "a");
    const FileBytes b = FileBytes::map(dir.path() / "b");
    EXPECT_EQ(mapped_file_at(a.bytes().data()), (dir.path() / "a").string());
    EXPECT_EQ(mapped_file_at(b.bytes().data() + 4999), (dir.path() / "b").string());
    const FileBytes moved = std::move(a);
    EXPECT_EQ(mapped_file_at(moved.bytes().data() + 17), (dir.path() / "a").string());
    EXPECT_EQ(mapped_file_at(&dir), nullptr);
    gone = moved.bytes().data();
  }
  EXPECT_EQ(mapped_file_at(gone), nullptr);
  for (int i = 0; i < 3000; ++i) FileBytes::map(dir.path() / "a");  // places are used again
  const FileBytes last = FileBytes::map(dir.path() / "b");
  EXPECT_EQ(mapped_file_at(last.bytes().data()), (dir.path() / "b").string());
}

}  // namespace
}  // namespace qengine
