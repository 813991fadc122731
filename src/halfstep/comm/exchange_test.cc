// The link's arithmetic, with a clock of our own: α + bytes / β, one link per rank.
#include "halfstep/comm/exchange.h"

#include <gtest/gtest.h>

namespace halfstep::comm {
namespace {

using std::chrono::milliseconds;

constexpr LinkModel kLink{.bytes_per_second = 1000, .latency_seconds = 0.005};  // 1 byte per ms
const Clock::time_point kStart{};

Exchange exchange(int size, Signature signature) {
  std::vector<int> ranks;
  for (int r = 0; r < size; ++r) ranks.push_back(r);
  return Exchange(ranks, signature);
}

TEST(Link, AllToAllTakesTheOwnPartsOfTheOthers) {
  std::vector<Clock::time_point> link_free(3);
  Exchange e = exchange(3, {"all_to_all", 10, -1});
  e.schedule(kLink, kStart, link_free);
  for (int r = 0; r < 3; ++r) {
    EXPECT_EQ(e.ready(r), kStart + milliseconds(20 + 5));
    EXPECT_EQ(link_free[r], kStart + milliseconds(20));  // the latency keeps no link busy
  }
}

TEST(Link, OperationsQueueOnTheLinkAndShareItsLatency) {
  std::vector<Clock::time_point> link_free(2);
  Exchange first = exchange(2, {"all_gather", 10, -1}),
           second = exchange(2, {"all_gather", 30, -1});
  first.schedule(kLink, kStart, link_free);
  second.schedule(kLink, kStart + milliseconds(1), link_free);
  EXPECT_EQ(first.ready(0), kStart + milliseconds(10 + 5));
  EXPECT_EQ(second.ready(0), kStart + milliseconds(10 + 30 + 5));
  Exchange later = exchange(2, {"all_gather", 1, -1});
  later.schedule(kLink, kStart + milliseconds(100), link_free);
  EXPECT_EQ(later.ready(1), kStart + milliseconds(100 + 1 + 5));
}

TEST(Link, ABroadcastLeavesTheRootOncePerRank) {
  std::vector<Clock::time_point> link_free(3);
  Exchange e = exchange(3, {"broadcast", 10, 1});
  e.schedule(kLink, kStart, link_free);
  EXPECT_EQ(e.ready(1), kStart + milliseconds(20));
  EXPECT_EQ(e.ready(0), kStart + milliseconds(25));
  EXPECT_EQ(link_free[0], kStart);
}

TEST(Link, AMessageWaitsForItsSendersLinkOnly) {
  std::vector<Clock::time_point> link_free(9);
  link_free[7] = kStart + milliseconds(50);
  Exchange from_busy({7, 2}, {"send", 10, 0}), to_busy({2, 7}, {"send", 10, 0});
  from_busy.schedule(kLink, kStart, link_free);
  to_busy.schedule(kLink, kStart, link_free);
  EXPECT_EQ(from_busy.ready(0), kStart + milliseconds(60));
  EXPECT_EQ(from_busy.ready(1), kStart + milliseconds(65));
  EXPECT_EQ(to_busy.ready(1), kStart + milliseconds(15));
}

TEST(Link, ASlowRankIsWaitedFor) {
  std::vector<Clock::time_point> link_free(3);
  link_free[2] = kStart + milliseconds(40);
  Exchange e = exchange(3, {"all_gather", 5, -1});
  e.schedule(kLink, kStart, link_free);
  EXPECT_EQ(e.ready(0), kStart + milliseconds(40 + 10 + 5));
  EXPECT_EQ(e.ready(2), kStart + milliseconds(40 + 10));
}

TEST(Link, WithoutAModelOrWithOneRankNothingTakesTime) {
  std::vector<Clock::time_point> link_free(2);
  Exchange ideal = exchange(2, {"all_gather", 1u << 30, -1});
  ideal.schedule({}, kStart, link_free);
  EXPECT_EQ(ideal.ready(0), kStart);
  Exchange alone = exchange(1, {"all_gather", 1u << 30, -1});
  alone.schedule(kLink, kStart, link_free);
  EXPECT_EQ(alone.ready(0), kStart);
}

}  // namespace
}  // namespace halfstep::comm
