#include "halfstep/bench/measure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>

namespace halfstep::bench {
namespace {

TEST(TimeInterleaved, RunsEveryCaseOnceARepeatAfterAWarmUp) {
  std::string order;
  const std::vector<Case> cases{{"a", [&] { order += 'a'; }}, {"b", [&] { order += 'b'; }}};
  time_interleaved(cases, 3);
  EXPECT_EQ(order, "abababab");
}

TEST(TimeInterleaved, ReportsMinimumAndMedian) {
  // Sleeps last at least as long as asked for, so these bounds hold on any machine.
  int call = 0;
  const std::vector<Case> cases{{"sleep", [&] {
                                   const int ms[] = {0, 30, 1, 10};  // the first does not count
                                   std::this_thread::sleep_for(
                                       std::chrono::milliseconds(ms[call++]));
                                 }}};
  const auto timings = time_interleaved(cases, 3);
  ASSERT_EQ(timings.size(), 1u);
  EXPECT_GE(timings[0].min_ms, 1.0);
  EXPECT_GE(timings[0].median_ms, 10.0);
  EXPECT_LE(timings[0].min_ms, timings[0].median_ms);
}

TEST(PeakExtraBytes, SeesMemoryThatIsFreedAgain) {
  constexpr int64_t kBytes = 64 << 20;
  const auto touch = [] {
    const auto memory = std::make_unique<char[]>(kBytes);
    for (int64_t i = 0; i < kBytes; i += 4096) static_cast<volatile char*>(memory.get())[i] = 1;
  };
  // The kernel counts resident pages for each CPU and adds them up late: a few may be missing.
  EXPECT_GE(peak_extra_bytes(touch), kBytes - kBytes / 16);
  EXPECT_LT(peak_extra_bytes([] {}), kBytes / 8);
}

}  // namespace
}  // namespace halfstep::bench
