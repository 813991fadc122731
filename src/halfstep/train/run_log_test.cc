#include "halfstep/train/run_log.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace halfstep::train {
namespace {

namespace fs = std::filesystem;

class RunLogTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "run_log_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
    terminal_ = std::tmpfile();
  }
  void TearDown() override {
    std::fclose(terminal_);
    fs::remove_all(directory_);
  }
  std::string shown() {
    std::string text(static_cast<size_t>(std::ftell(terminal_)), 0);
    std::rewind(terminal_);
    text.resize(std::fread(text.data(), 1, text.size(), terminal_));
    return text;
  }

  fs::path directory_;
  std::FILE* terminal_ = nullptr;
};

TEST_F(RunLogTest, AppendsOneObjectPerLine) {
  for (int run = 0; run < 2; ++run) {
    RunLog log(terminal_, directory_, false);
    log.event({{"event", "step"}, {"step", run}});
  }
  std::ifstream file(directory_ / "log.jsonl");
  std::string first, second, third;
  std::getline(file, first);
  std::getline(file, second);
  EXPECT_EQ(first, R"({"event":"step","step":0})");
  EXPECT_EQ(second, R"({"event":"step","step":1})");
  EXPECT_FALSE(std::getline(file, third));
}

TEST_F(RunLogTest, AFullDiskIsSaidOnceAndEndsNoRun) {
  fs::create_symlink("/dev/full", directory_ / "log.jsonl");
  RunLog log(terminal_, directory_, false);
  log.event({{"event", "start"}});
  log.event({{"event", "step"}});
  const std::string text = shown();
  EXPECT_NE(text.find("goes on without it"), std::string::npos) << text;
  EXPECT_EQ(text.find("goes on without it"), text.rfind("goes on without it"));
}

TEST_F(RunLogTest, QuietHidesDetailsOnly) {
  RunLog log(terminal_, "", true);
  log.line("shown");
  log.detail("hidden");
  EXPECT_EQ(shown(), "shown\n");
}

}  // namespace
}  // namespace halfstep::train
