#include "halfstep/data/permutation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace halfstep::data {
namespace {

void expect_permutation(int64_t n, uint64_t seed, int64_t epoch) {
  std::vector<bool> seen(n);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t image = permute_index(i, n, seed, epoch);
    ASSERT_GE(image, 0);
    ASSERT_LT(image, n);
    ASSERT_FALSE(seen[image]) << "n " << n << ", two indices go to " << image;
    seen[image] = true;
  }
}

TEST(Permutation, HitsEveryIndexOnceForSmallSizes) {
  for (int64_t n = 1; n <= 200; ++n) expect_permutation(n, 42, 0);
}

TEST(Permutation, HitsEveryIndexOnceForAMillion) { expect_permutation(1'000'000, 7, 3); }

TEST(Permutation, HugeSizesStayInside) {
  for (const int64_t n : {(int64_t{1} << 40) + 1, int64_t{1} << 62}) {
    EXPECT_NE(permute_index(0, n, 1, 0), permute_index(n - 1, n, 1, 0));
    for (int64_t i = 0; i < 100; ++i) EXPECT_LT(permute_index(n - 1 - i, n, 1, 0), n);
  }
}

TEST(Permutation, SeedAndEpochChangeTheOrder) {
  constexpr int64_t n = 1000;
  int64_t same_seed = 0, same_epoch = 0, same_high_epoch = 0, same_high_seed = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t image = permute_index(i, n, 5, 1);
    same_seed += image == permute_index(i, n, 6, 1);
    same_epoch += image == permute_index(i, n, 5, 2);
    same_high_seed += image == permute_index(i, n, 5 + (uint64_t{1} << 32), 1);
    same_high_epoch += image == permute_index(i, n, 5, 1 + (int64_t{1} << 32));
  }
  // Two independent permutations agree in Poisson(1) places; P(more than 8) < 1.2e-6.
  EXPECT_LE(same_seed, 8);
  EXPECT_LE(same_epoch, 8);
  EXPECT_LE(same_high_seed, 8);
  EXPECT_LE(same_high_epoch, 8);
}

// Over many seeds each index goes to each place equally often, whatever the size.
TEST(Permutation, EveryPlaceIsEquallyLikely) {
  for (const int64_t n : {2, 3, 7, 10, 33}) {
    const int64_t seeds = 100 * n;
    std::vector<int64_t> counts(n * n);
    for (int64_t seed = 0; seed < seeds; ++seed) {
      for (int64_t i = 0; i < n; ++i) ++counts[i * n + permute_index(i, n, seed, 0)];
    }
    // Each row is multinomial, and the columns sum to `seeds` too: for a uniform source the
    // statistic is χ² with (n − 1)² degrees of freedom, mean k, standard deviation √(2k)
    // (times n / (n − 1), because entries of a permutation repel each other).
    double chi2 = 0;
    for (const int64_t c : counts) chi2 += (c - 100.0) * (c - 100.0) / 100.0;
    const double k = static_cast<double>((n - 1) * (n - 1));
    chi2 *= (n - 1.0) / n;
    EXPECT_NEAR(chi2, k, 4 * std::sqrt(2 * k)) << "n " << n;
  }
}

// A low-order walk would keep neighbours together; in a random order the mean distance between the
// images of i and i + 1 is n / 3. Its variance: n² / 18 of one distance plus twice the covariance
// n² / 180 of distances that share an end, over n distances: n² / (15 n).
TEST(Permutation, NeighboursAreSeparated) {
  constexpr int64_t n = 10'000;
  double distance = 0;
  for (int64_t i = 0; i + 1 < n; ++i) {
    distance += std::abs(permute_index(i + 1, n, 11, 0) - permute_index(i, n, 11, 0));
  }
  EXPECT_NEAR(distance / (n - 1), n / 3.0, 4 * n / std::sqrt(15.0 * n));
}

}  // namespace
}  // namespace halfstep::data
