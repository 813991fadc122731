#include "halfstep/data/blend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "halfstep/core/error.h"

namespace halfstep::data {
namespace {

// Every source is read in its own order without a gap, and stays within the documented distance of
// its share after every prefix.
void expect_proportions(const std::vector<double>& weights) {
  const auto ratios = blend_ratios(weights);
  double sum = 0;
  for (const double w : weights) sum += w;
  std::vector<int64_t> counts(weights.size());
  for (int64_t i = 0; i < 20'000; ++i) {
    const auto location = blend_locate(ratios, i);
    ASSERT_EQ(location.index, counts[location.source]) << "sample " << i;
    ++counts[location.source];
    for (size_t k = 0; k < weights.size(); ++k) {
      const double share = (i + 1) * weights[k] / sum;
      // 1e-9: rounding of `share` itself.
      ASSERT_LE(std::abs(counts[k] - share), std::max<double>(1, k) + 1e-9)
          << "source " << k << " after " << i + 1 << " samples";
    }
  }
}

TEST(Blend, EverySourceKeepsItsShareAfterEveryPrefix) {
  expect_proportions({1});
  expect_proportions({0.3, 0.7});
  expect_proportions({0.7, 0.3});
  expect_proportions({1, 1, 1});
  expect_proportions({5, 0.001, 3, 2, 1e-9});
  expect_proportions({0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1});
}

TEST(Blend, WeightsAreRelative) {
  EXPECT_EQ(blend_ratios(std::vector<double>{3, 7}), blend_ratios(std::vector<double>{6, 14}));
}

TEST(Blend, IndicesBeyond32BitsAreExact) {
  const auto ratios = blend_ratios(std::vector<double>{1, 1});
  const int64_t index = (int64_t{1} << 61) + 1;
  const auto location = blend_locate(ratios, index);
  EXPECT_EQ(location.source, 0);
  EXPECT_EQ(location.index, int64_t{1} << 60);
}

TEST(Blend, WeightsThatAreNotPositiveAreRefused) {
  for (const double bad : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::nan("")}) {
    EXPECT_THROW(blend_ratios(std::vector<double>{1, bad}), UsageError);
  }
  EXPECT_THROW(blend_ratios({}), UsageError);
}

}  // namespace
}  // namespace halfstep::data
