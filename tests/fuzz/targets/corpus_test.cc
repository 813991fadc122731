// Replays tests/fuzz/corpus/TARGET through the target that this program is linked with: each file
// is an input that was once a finding, a known attack, or a valid file from which the fuzzer
// starts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "target.h"

namespace halfstep::fuzz {
namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void replay(const std::string& input) {
  // A copy of just this size, so that the address sanitizer sees a step beyond its end.
  const std::vector<uint8_t> bytes(input.begin(), input.end());
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

TEST(Corpus, IsReadOrRefusedWithoutAFinding) {
  const char* source = std::getenv("HALFSTEP_SOURCE_DIR");
  ASSERT_NE(source, nullptr) << "run it with ctest";
  const char* target = std::getenv("HALFSTEP_FUZZ_TARGET");
  ASSERT_NE(target, nullptr) << "run it with ctest";
  const fs::path folder = fs::path(source) / "tests/fuzz/corpus" / target;
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  ASSERT_FALSE(files.empty()) << folder;
  for (const fs::path& file : files) {
    SCOPED_TRACE(file.string());
    const std::string input = read(file);
    EXPECT_NO_THROW(replay(input));
    // And cut anywhere, as an interrupted copy is.
    for (size_t size = 0; size < input.size(); size += 1 + input.size() / 16) {
      EXPECT_NO_THROW(replay(input.substr(0, size))) << "its first " << size << " bytes";
    }
  }
}

}  // namespace
}  // namespace halfstep::fuzz
