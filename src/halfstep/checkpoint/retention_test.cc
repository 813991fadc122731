#include "halfstep/checkpoint/retention.h"

#include <gtest/gtest.h>

namespace halfstep::checkpoint {
namespace {

using Steps = std::vector<int64_t>;

TEST(Retention, KeepsEverythingByDefault) {
  EXPECT_EQ(retention({1, 2, 3}, 3, {}), Steps{});
  EXPECT_EQ(retention({1, 2, 3}, 3, {.keep_last = 0, .keep_every = 2}), Steps{});
}

TEST(Retention, KeepsTheLastOnesWithTheSavedOne) {
  EXPECT_EQ(retention({30, 10, 20, 40}, 40, {.keep_last = 2}), (Steps{10, 20}));
  EXPECT_EQ(retention({10, 20, 30, 40}, 40, {.keep_last = 1}), (Steps{10, 20, 30}));
}

TEST(Retention, NeverGivesUpMoreThanThereAre) {
  EXPECT_EQ(retention({10, 20}, 20, {.keep_last = 5}), Steps{});
  EXPECT_EQ(retention({20}, 20, {.keep_last = 1}), Steps{});
  EXPECT_EQ(retention({}, 20, {.keep_last = 1}), Steps{});
}

TEST(Retention, KeepsMilestones) {
  EXPECT_EQ(retention({100, 150, 200, 250, 300}, 300, {.keep_last = 1, .keep_every = 100}),
            (Steps{150, 250}));
}

TEST(Retention, LeavesLaterOnesAlone) {
  // The run went to 900, was resumed from 100, and saves 150: neither 150 nor 900 may go.
  EXPECT_EQ(retention({50, 100, 150, 900}, 150, {.keep_last = 1}), (Steps{50, 100}));
}

}  // namespace
}  // namespace halfstep::checkpoint
