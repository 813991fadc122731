#include "halfstep/comm/together.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>

#include "halfstep/comm/single_rank.h"
#include "halfstep/comm/thread_group.h"

namespace halfstep::comm {
namespace {

using ::testing::HasSubstr;

TEST(Together, NobodyGoesOnBeforeEverybodyHasEnded) {
  std::atomic<int> ended = 0;
  run_ranks(5, [&](Communicator& ranks) {
    together(ranks, [&] { ++ended; });
    EXPECT_EQ(ended, 5);
  });
}

// Ranks 2 and 3 fail; all throw, with rank 2's code, and the group lives on.
TEST(Together, AFailureOfOneIsAFailureOfAll) {
  run_ranks(4, [](Communicator& ranks) {
    for (int round = 0; round < 2; ++round) {
      try {
        together(ranks, [&] {
          if (ranks.rank() == 2) throw InputError("no space left");
          if (ranks.rank() == 3) throw UsageError("something else");
        });
        ADD_FAILURE() << "rank " << ranks.rank() << " went on";
      } catch (const Error& error) {
        if (ranks.rank() == 3) {
          EXPECT_EQ(error.code(), ExitCode::kUsage);
          EXPECT_STREQ(error.what(), "something else");
        } else {
          EXPECT_EQ(error.code(), ExitCode::kBadInput);
          EXPECT_THAT(error.what(), HasSubstr("no space left"));
          EXPECT_EQ(std::string(error.what()).starts_with("rank 2"), ranks.rank() != 2);
        }
      }
    }
    ranks.barrier();
  });
}

TEST(Together, TextsOfAllRanksReachRank0) {
  run_ranks(4, [](Communicator& ranks) {
    const std::string mine(ranks.rank() * 1000, static_cast<char>('a' + ranks.rank()));
    const auto texts = gather_texts(ranks, mine);
    std::vector<std::string> expected;
    for (int r = 0; r < 4 && ranks.rank() == 0; ++r) {
      expected.emplace_back(r * 1000, static_cast<char>('a' + r));
    }
    EXPECT_EQ(texts, expected);
  });
}

TEST(Together, NumbersOfAllRanksReachEveryRankInTheirOrder) {
  run_ranks(3, [](Communicator& ranks) {
    const double r = ranks.rank();
    EXPECT_EQ(gather(ranks, std::array{r, 10 + r}), (std::vector<double>{0, 10, 1, 11, 2, 12}));
  });
}

TEST(Together, ASingleRankNeedsNobody) {
  SingleRank alone;
  together(alone, [] {});
  EXPECT_THROW(together(alone, [] { throw InputError("x"); }), InputError);
  EXPECT_EQ(gather_texts(alone, "text"), std::vector<std::string>{"text"});
  EXPECT_EQ(gather(alone, std::array{3.0, 4.0}), (std::vector<double>{3, 4}));
  std::byte from[3]{std::byte{1}, std::byte{2}, std::byte{3}}, to[3]{};
  alone.all_to_all(from, to).wait();
  EXPECT_EQ(to[2], std::byte{3});
  EXPECT_EQ(alone.traffic().total(), 0);
}

}  // namespace
}  // namespace halfstep::comm
