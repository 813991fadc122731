#include "halfstep/data/split.h"

#include <gtest/gtest.h>

#include "halfstep/core/error.h"

namespace halfstep::data {
namespace {

void expect_split(int64_t windows, std::string_view split, std::array<int64_t, 3> counts) {
  const auto ranges = split_windows(windows, split);
  int64_t next = 0;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(ranges[i].first, next) << split;
    EXPECT_EQ(ranges[i].count, counts[i]) << split << " of " << windows << ", range " << i;
    next += ranges[i].count;
  }
  EXPECT_EQ(next, windows);
}

TEST(Split, ProportionsAreRoundedAtEachBoundary) {
  expect_split(1000, "969,30,1", {969, 30, 1});
  expect_split(10, "969,30,1", {10, 0, 0});
  expect_split(97, "90,10", {87, 10, 0});
  expect_split(97, "100", {97, 0, 0});
  expect_split(97, "1,0,0", {97, 0, 0});
  expect_split(97, "0,0,1", {0, 0, 97});
  expect_split(3, "1,1,1", {1, 1, 1});
  expect_split(7, "0.5,0.25,0.25", {4, 1, 2});
  expect_split(0, "969,30,1", {0, 0, 0});
  expect_split(int64_t{1} << 50, "1,1,2", {int64_t{1} << 48, int64_t{1} << 48, int64_t{1} << 49});
}

TEST(Split, MalformedTextIsAUsageError) {
  for (const char* bad :
       {"", ",", "1,", "1,2,3,4", "1;2", "a", "-1,2", "0,0,0", "nan", "inf", "1 2"}) {
    EXPECT_THROW(split_windows(100, bad), UsageError) << "'" << bad << "'";
  }
}

}  // namespace
}  // namespace halfstep::data
