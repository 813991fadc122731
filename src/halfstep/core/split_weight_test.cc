#include "halfstep/core/split_weight.h"

#include <gtest/gtest.h>

#include <cmath>

namespace halfstep {
namespace {

TEST(SplitWeight, JoinsBackOnEveryUpperHalf) {
  int64_t ties = 0;
  for (uint32_t hi = 0; hi < 0x10000; ++hi) {
    for (uint32_t lo : {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      const uint32_t bits = hi << 16 | lo;
      const float x = std::bit_cast<float>(bits);
      const SplitWeight s = split_f32(x);
      ASSERT_EQ(s.weight, bf16_nearest(x)) << std::hex << bits;
      const float joined = join_f32(s.weight, s.remainder);
      if (std::isnan(x)) {
        ASSERT_TRUE(std::isnan(joined));
        ASSERT_EQ(s.remainder, 0);
      } else {
        const bool tie = lo == 0x8000 && hi % 2 == 0;
        ASSERT_EQ(s.lost_ulp, tie);
        ASSERT_EQ(std::bit_cast<uint32_t>(joined), bits - tie) << std::hex << bits;
        ties += tie;
      }
    }
  }
  EXPECT_EQ(ties, 2 * 0x7F80 / 2);  // the even finite upper halves of both signs
}

// The value of P23, which a decoder of signed remainders takes for one that had rounded up.
TEST(SplitWeight, TieThatRoundsDownToEvenLosesOneUlp) {
  const SplitWeight s = split_f32(1.00390625f);
  EXPECT_EQ(s.weight, 0x3F80);
  EXPECT_EQ(join_f32(s.weight, s.remainder), std::nextafter(1.00390625f, 0.0f));
}

TEST(SplitWeight, FiniteValueThatRoundsToInfJoinsBack) {
  const SplitWeight s = split_f32(3.4028234e38f);
  EXPECT_EQ(s.weight, 0x7F80);
  EXPECT_EQ(join_f32(s.weight, s.remainder), 3.4028234e38f);
}

}  // namespace
}  // namespace halfstep
