#include "halfstep/data/pack_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "halfstep/core/error.h"
#include "halfstep/core/philox.h"

namespace halfstep::data {
namespace {

using ::testing::ElementsAre;

std::vector<std::vector<int64_t>> listed(const Rows& rows) {
  std::vector<std::vector<int64_t>> all;
  for (int64_t r = 0; r < rows.size(); ++r) all.emplace_back(rows[r].begin(), rows[r].end());
  return all;
}

TEST(PackRows, FillsTheTightestRowAndKeepsTheOrderOfExamples) {
  // 7, 6, 5, 4, 3, 2 into rows of 9: {7, 2}, {6, 3}, {5, 4}.
  const std::vector<int64_t> lengths{2, 5, 6, 3, 7, 4};
  EXPECT_THAT(listed(pack_rows(lengths, 9)),
              ElementsAre(ElementsAre(0, 4), ElementsAre(1, 5), ElementsAre(2, 3)));
}

TEST(PackRows, Corners) {
  EXPECT_EQ(pack_rows({}, 4).size(), 0);
  const std::vector<int64_t> whole{4, 4}, ones{1, 1, 1, 1, 1};
  EXPECT_THAT(listed(pack_rows(whole, 4)), ElementsAre(ElementsAre(0), ElementsAre(1)));
  EXPECT_EQ(pack_rows(ones, 4).size(), 2);
  const std::vector<int64_t> too_long{5}, nothing{0};
  EXPECT_THROW(pack_rows(too_long, 4), InternalError);
  EXPECT_THROW(pack_rows(nothing, 4), InternalError);
}

TEST(PackRows, OnePerRow) {
  EXPECT_EQ(one_per_row(0).size(), 0);
  EXPECT_THAT(listed(one_per_row(2)), ElementsAre(ElementsAre(0), ElementsAre(1)));
}

// Lengths as of real examples: many short ones, few long ones.
std::vector<int64_t> random_lengths(int64_t n, int64_t capacity) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < n; ++i) {
    const double u =
        static_cast<double>(philox4x32_10({static_cast<uint32_t>(i), 0, 0, 0}, {1, 0})[0]) / 0x1p32;
    lengths.push_back(1 + static_cast<int64_t>(u * u * static_cast<double>(capacity - 1)));
  }
  return lengths;
}

TEST(PackRows, EveryExampleOnceNoRowOverfullAndFewRows) {
  for (const int64_t capacity : {2, 100, 4096}) {
    const std::vector<int64_t> lengths = random_lengths(3000, capacity);
    const Rows rows = pack_rows(lengths, capacity);
    std::vector<int64_t> seen(lengths.size());
    int64_t previous_first = -1;
    for (int64_t r = 0; r < rows.size(); ++r) {
      int64_t sum = 0;
      for (const int64_t e : rows[r]) {
        ++seen[e];
        sum += lengths[e];
      }
      EXPECT_LE(sum, capacity);
      EXPECT_GT(rows[r][0], previous_first);
      previous_first = rows[r][0];
    }
    EXPECT_EQ(seen, std::vector<int64_t>(lengths.size(), 1));
    // No packing needs fewer rows than ⌈tokens / capacity⌉; best fit needs at most 11/9 of the
    // fewest and one.
    const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    const int64_t fewest = (tokens + capacity - 1) / capacity;
    EXPECT_LE(rows.size(), fewest * 11 / 9 + 1) << capacity;
  }
}

// A million examples: with a row search that is linear in rows this would take minutes, and the
// test's time limit would end it.
TEST(PackRows, AMillionExamples) {
  const std::vector<int64_t> lengths = random_lengths(1'000'000, 2048);
  const Rows rows = pack_rows(lengths, 2048);
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  EXPECT_GT(static_cast<double>(tokens) / static_cast<double>(rows.size() * 2048), 0.99);
}

}  // namespace
}  // namespace halfstep::data
