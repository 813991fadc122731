#include "halfstep/core/ue6m10.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>

#include "halfstep/core/codec_oracle.h"

namespace halfstep {
namespace {

constexpr uint32_t kNumbers = 65535;  // codes that are numbers, 0 … 0xFFFE

TEST(Ue6m10, DecodeFollowsTheLayout) {
  for (uint32_t code = 0; code < kNumbers; ++code) {
    const int e = static_cast<int>(code >> 10);
    const double m = code & 1023;
    const double value = e == 0 ? m * 0x1p-62 : std::ldexp(1 + m / 1024, e - 53);
    ASSERT_EQ(double{ue6m10_decode(static_cast<uint16_t>(code))}, value) << code;
  }
  EXPECT_TRUE(std::isnan(ue6m10_decode(kUe6m10NaN)));
  EXPECT_EQ(ue6m10_decode(kUe6m10Max), 2046.0f);
  EXPECT_EQ(ue6m10_decode(1), 0x1p-62f);
  EXPECT_EQ(ue6m10_decode(1024), kUe6m10FullPrecision);
}

TEST(Ue6m10, EveryNumberSurvivesEveryRounding) {
  for (uint32_t code = 0; code < kNumbers; ++code) {
    const float x = ue6m10_decode(static_cast<uint16_t>(code));
    ASSERT_EQ(ue6m10_nearest(x), code);
    ASSERT_EQ(ue6m10_stochastic(x, 0), code);
    ASSERT_EQ(ue6m10_stochastic(x, 65535), code);
  }
}

// Between each two neighbours: the midpoint and one FP32 ulp to either side of it and of both ends.
TEST(Ue6m10, NearestEqualsExactArithmetic) {
  for (uint32_t code = 0; code + 1 < kNumbers; ++code) {
    const uint16_t below = static_cast<uint16_t>(code);
    const float a = ue6m10_decode(below), b = ue6m10_decode(static_cast<uint16_t>(code + 1));
    const float middle = a + (b - a) / 2;
    for (float x : {std::nextafter(a, b), std::nextafter(middle, a), middle,
                    std::nextafter(middle, b), std::nextafter(b, a)}) {
      ASSERT_EQ(ue6m10_nearest(x), oracle::ue6m10_nearest(x, below)) << std::hexfloat << x;
    }
  }
}

// Below full precision the sticky bits of the significand decide ties: 97 values of every exponent
// and both neighbours of every tie.
TEST(Ue6m10, NearestBelowFullPrecision) {
  for (uint32_t exponent = 0; exponent < 75; ++exponent) {
    for (uint32_t m = 0; m < 1u << 23; m += 86'481) {
      const float x = std::bit_cast<float>(exponent << 23 | m);
      const uint16_t below = static_cast<uint16_t>(double{x} * 0x1p62);
      ASSERT_EQ(ue6m10_nearest(x), oracle::ue6m10_nearest(x, below)) << std::hexfloat << x;
    }
  }
  for (uint32_t odd = 1; odd < 2048; odd += 2) {
    const float tie = static_cast<float>(odd) * 0x1p-63f;
    const uint16_t below = static_cast<uint16_t>(odd / 2);
    EXPECT_EQ(ue6m10_nearest(tie), below + below % 2);
    EXPECT_EQ(ue6m10_nearest(std::nextafter(tie, 0.0f)), below);
    EXPECT_EQ(ue6m10_nearest(std::nextafter(tie, 1.0f)), below + 1);
  }
}

// SR goes up exactly where r reaches 65536 minus the discarded fraction, in units of 2^-16 of a
// step (truncated to them below full precision).
TEST(Ue6m10, StochasticGoesUpFromItsThresholdOn) {
  for (uint32_t code = 0; code + 1 < kNumbers; code += 7) {
    const uint16_t below = static_cast<uint16_t>(code);
    const double a = ue6m10_decode(below);
    const double step = double{ue6m10_decode(static_cast<uint16_t>(code + 1))} - a;
    for (double fraction : {0x1p-13, 0.125, 0.5, 0.75, 1 - 0x1p-13}) {
      const float x = static_cast<float>(a + step * fraction);
      const auto units = static_cast<uint32_t>((double{x} - a) / step * 65536);
      ASSERT_EQ(ue6m10_stochastic(x, 0), below);
      ASSERT_EQ(ue6m10_stochastic(x, 65535 - units), below) << std::hexfloat << x;
      ASSERT_EQ(ue6m10_stochastic(x, 65536 - units), below + 1) << std::hexfloat << x;
    }
  }
}

TEST(Ue6m10, SpecialValues) {
  const float nan = std::bit_cast<float>(0x7FFF8001u);
  for (float x : {nan, -nan, INFINITY, -INFINITY, -1.0f, -0x1p-149f}) {
    EXPECT_EQ(ue6m10_nearest(x), kUe6m10NaN);
    EXPECT_EQ(ue6m10_stochastic(x, 0), kUe6m10NaN);
    EXPECT_EQ(ue6m10_stochastic(x, 65535), kUe6m10NaN);
  }
  for (float x : {0.0f, -0.0f}) {
    EXPECT_EQ(ue6m10_nearest(x), 0);
    EXPECT_EQ(ue6m10_stochastic(x, 65535), 0);
  }
  // FP32 subnormals and everything else below 2^-78 are too small even for the noise.
  EXPECT_EQ(ue6m10_stochastic(0x1p-149f, 65535), 0);
  EXPECT_EQ(ue6m10_stochastic(0x1.fffffep-79f, 65535), 0);
  EXPECT_EQ(ue6m10_stochastic(0x1p-78f, 65535), 1);
}

TEST(Ue6m10, SaturatesAtTheLargestFiniteValueAndCountsByTheNearestCode) {
  for (float x : {2046.25f, 2046.5f, 2046.75f, 2047.0f, 2048.0f, 1e9f, FLT_MAX}) {
    EXPECT_EQ(ue6m10_nearest(x), kUe6m10Max) << x;
    EXPECT_EQ(ue6m10_stochastic(x, 0), kUe6m10Max) << x;
    EXPECT_EQ(ue6m10_stochastic(x, 65535), kUe6m10Max) << x;
    EXPECT_EQ(ue6m10_saturates(x), x > 2046.5f) << x;
  }
  EXPECT_FALSE(ue6m10_saturates(INFINITY));
  EXPECT_FALSE(ue6m10_saturates(NAN));
  EXPECT_FALSE(ue6m10_saturates(-3000.0f));
}

}  // namespace
}  // namespace halfstep
