#include "halfstep/train/run_log.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "halfstep/core/test_folder.h"

namespace halfstep::train {
namespace {

namespace fs = std::filesystem;

class RunLogTest : public testing::Test {
 protected:
  void SetUp() override { terminal_ = std::tmpfile(); }
  void TearDown() override { std::fclose(terminal_); }
  std::string shown() {
    std::string text(static_cast<size_t>(std::ftell(terminal_)), 0);
    std::rewind(terminal_);
    text.resize(std::fread(text.data(), 1, text.size(), terminal_));
    return text;
  }

  TestFolder folder_;
  std::FILE* terminal_ = nullptr;
};

TEST_F(RunLogTest, AppendsOneObjectPerLine) {
  for (int run = 0; run < 2; ++run) {
    RunLog log(terminal_, folder_.path(), false);
    log.event({{"event", "step"}, {"step", run}});
  }
  std::ifstream file(folder_ / "log.jsonl");
  std::string first, second, third;
  std::getline(file, first);
  std::getline(file, second);
  EXPECT_EQ(first, R"({"event":"step","step":0})");
  EXPECT_EQ(second, R"({"event":"step","step":1})");
  EXPECT_FALSE(std::getline(file, third));
}

TEST_F(RunLogTest, AFullDiskIsSaidOnceAndEndsNoRun) {
  fs::create_symlink("/dev/full", folder_ / "log.jsonl");
  RunLog log(terminal_, folder_.path(), false);
  log.event({{"event", "start"}});
  log.event({{"event", "step"}});
  const std::string text = shown();
  EXPECT_NE(text.find("goes on without it"), std::string::npos) << text;
  EXPECT_EQ(text.find("goes on without it"), text.rfind("goes on without it"));
}

TEST_F(RunLogTest, OutputThatCannotBeWrittenEndsNoRun) {
  std::FILE* full = std::fopen("/dev/full", "w");
  ASSERT_NE(full, nullptr);
  RunLog log(full, folder_.path(), false);
  const std::string text(1000, 'x');
  for (int i = 0; i < 100; ++i) log.line(text);  // more than any buffer holds
  log.event({{"event", "end"}});
  std::fclose(full);
  EXPECT_GT(fs::file_size(folder_ / "log.jsonl"), 0u);
}

TEST_F(RunLogTest, QuietHidesDetailsOnly) {
  RunLog log(terminal_, "", true);
  log.line("shown");
  log.detail("hidden");
  EXPECT_EQ(shown(), "shown\n");
}

}  // namespace
}  // namespace halfstep::train
