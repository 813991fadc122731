#include "halfstep/core/bf16.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>

#include "halfstep/core/codec_oracle.h"

namespace halfstep {
namespace {

constexpr uint32_t kLowHalves[] = {0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF};

template <typename Check>
void for_each_directed_pattern(Check&& check) {
  for (uint32_t hi = 0; hi < 0x10000; ++hi) {
    for (uint32_t lo : kLowHalves) check(hi << 16 | lo);
  }
}

TEST(Bf16, DecodeIsTheUpperHalf) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    EXPECT_EQ(std::bit_cast<uint32_t>(bf16_decode(static_cast<uint16_t>(code))), code << 16);
  }
}

TEST(Bf16, NearestEqualsExactArithmeticOnEveryUpperHalf) {
  for_each_directed_pattern([](uint32_t bits) {
    ASSERT_EQ(bf16_nearest(std::bit_cast<float>(bits)), oracle::bf16_nearest(bits))
        << std::hex << bits;
  });
}

TEST(Bf16, ExactValuesNeverChange) {
  for (uint32_t hi = 0; hi < 0x10000; ++hi) {
    const float x = bf16_decode(static_cast<uint16_t>(hi));
    if (std::isnan(x)) continue;
    for (uint32_t r : {0u, 1u, 0x8000u, 0xFFFFu}) ASSERT_EQ(bf16_stochastic(x, r), hi);
  }
}

// For every finite value: truncation with r = 0; up from r = 65536 − lo on; never Inf unless
// nearest is Inf; the sign is kept.
TEST(Bf16, StochasticGoesUpFromItsThresholdOn) {
  for_each_directed_pattern([](uint32_t bits) {
    const float x = std::bit_cast<float>(bits);
    if (!std::isfinite(x)) return;
    const uint32_t hi = bits >> 16, lo = bits & 0xFFFF;
    ASSERT_EQ(bf16_stochastic(x, 0), hi);
    if (lo == 0) return;
    ASSERT_EQ(bf16_stochastic(x, 0xFFFF - lo), hi) << std::hex << bits;
    const bool largest = (hi & 0x7FFF) == 0x7F7F && lo < 0x8000;
    ASSERT_EQ(bf16_stochastic(x, 0x10000 - lo), largest ? hi : hi + 1) << std::hex << bits;
  });
}

TEST(Bf16, SpecialValues) {
  for (uint32_t sign : {0u, 0x80000000u}) {
    const uint16_t s = static_cast<uint16_t>(sign >> 16);
    // The NaNs that naive rounding turns into Inf, −0 and +0 (P22).
    for (uint32_t nan : {0x7F800001u, 0x7FFF8001u, 0x7FFF8C22u, 0x7FFFFFFFu, 0x7FC00000u}) {
      const float x = std::bit_cast<float>(nan | sign);
      for (uint16_t code : {bf16_nearest(x), bf16_stochastic(x, 0), bf16_stochastic(x, 0xFFFF)}) {
        EXPECT_TRUE(std::isnan(bf16_decode(code)));
        EXPECT_TRUE(code & kBf16QuietBit);
        EXPECT_EQ(code & 0x8000, s);
      }
    }
    const float inf = std::bit_cast<float>(0x7F800000 | sign);
    EXPECT_EQ(bf16_nearest(inf), 0x7F80 | s);
    EXPECT_EQ(bf16_stochastic(inf, 0xFFFF), 0x7F80 | s);
    const float max = std::bit_cast<float>(0x7F7FFFFF | sign);  // ±FLT_MAX
    EXPECT_EQ(bf16_nearest(max), 0x7F80 | s);
    EXPECT_EQ(bf16_stochastic(max, 0), 0x7F7F | s);       // the plain sum decides
    EXPECT_EQ(bf16_stochastic(max, 0xFFFF), 0x7F80 | s);  //
    const float below_tie = std::bit_cast<float>(0x7F7F7FFF | sign);
    EXPECT_EQ(bf16_stochastic(below_tie, 0xFFFF), 0x7F7F | s);
    EXPECT_EQ(bf16_nearest(std::bit_cast<float>(sign)), s);  // ±0
    const float least = std::bit_cast<float>(1 | sign);      // ±2^-149
    EXPECT_EQ(bf16_nearest(least), s);
    EXPECT_EQ(bf16_stochastic(least, 0xFFFF), 1 | s);
  }
}

TEST(Bf16, NearestOfFp64IsRoundedOnce) {
  // Just above a BF16 tie by less than FP32 sees: rounding twice would go down to even.
  EXPECT_EQ(bf16_nearest(1.0 + 0x1p-8 + 0x1p-40), 0x3F81);
  EXPECT_EQ(bf16_nearest(static_cast<float>(1.0 + 0x1p-8 + 0x1p-40)), 0x3F80);
  EXPECT_EQ(bf16_nearest(-(1.0 + 3 * 0x1p-8)), 0xBF82);
  EXPECT_EQ(bf16_nearest(0.0), 0);
}

}  // namespace
}  // namespace halfstep
