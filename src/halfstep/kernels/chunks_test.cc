#include "halfstep/kernels/chunks.h"

#include <gtest/gtest.h>

#include <vector>

#include "halfstep/kernels/slice_runs.h"

namespace halfstep::kernels {
namespace {

AdamwSlice rectangle(int64_t rows, int64_t cols, int64_t global_cols) {
  return {.rows = rows, .cols = cols, .global_cols = global_cols};
}

// Sizes far beyond 2^32 included: the walk is arithmetic alone.
TEST(SliceChunks, CoverEverySliceOnceInOrder) {
  const std::vector<AdamwSlice> slices = {
      rectangle(1, 5, 5), rectangle(0, 7, 7), rectangle(3, 40'000, 40'000),
      rectangle(1, kChunkElements, kChunkElements), rectangle(1 << 17, 1 << 17, 1 << 18)};
  SliceChunks chunks(slices);
  const int64_t count = SliceChunks::count(slices);
  EXPECT_EQ(count, 1 + 0 + 2 + 1 + (int64_t{1} << 34) / kChunkElements);
  std::vector<int64_t> covered(slices.size());
  for (int64_t i = 0; i < count; ++i) {
    const SliceChunks::Piece piece = chunks.seek(i);
    int64_t& so_far = covered[static_cast<size_t>(piece.slice - slices.data())];
    ASSERT_EQ(piece.begin, so_far);
    so_far += piece.count;
  }
  for (size_t i = 0; i < slices.size(); ++i) EXPECT_EQ(covered[i], slices[i].rows * slices[i].cols);
}

TEST(SliceRuns, AreWholeRowsOrOneEach) {
  const AdamwScalars scalars{};
  const auto runs = [&](AdamwSlice slice, int64_t begin, int64_t count) {
    slice.scalars = &scalars;
    std::vector<std::pair<int64_t, int64_t>> result;
    for_each_run({}, {&slice, begin, count}, 0,
                 [&](const AdamwRun& run) { result.emplace_back(run.first, run.n); });
    return result;
  };
  using Runs = std::vector<std::pair<int64_t, int64_t>>;
  AdamwSlice slice = rectangle(10, 100, 100);
  slice.global_row0 = 7;
  EXPECT_EQ(runs(slice, 150, 500), (Runs{{850, 500}}));
  slice.global_cols = 1000;
  slice.global_col0 = 30;
  EXPECT_EQ(runs(slice, 150, 175), (Runs{{8080, 50}, {9030, 100}, {10'030, 25}}));
  // Beyond 2^32 elements.
  slice = rectangle(1 << 17, 1 << 17, 1 << 17);
  const int64_t begin = (int64_t{1} << 33) + 5;
  EXPECT_EQ(runs(slice, begin, 9), (Runs{{begin, 9}}));
}

}  // namespace
}  // namespace halfstep::kernels
