// `--split 969,30,1`: which windows of a dataset are for training, validation and test.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace halfstep::data {

struct SampleRange {
  int64_t first = 0, count = 0;
};

// Three consecutive ranges that together are [0, num_windows), in proportion to the one to three
// comma-separated weights of `split` (missing ones are 0). Each boundary is rounded on its own, so
// a range may be empty; WindowSampler refuses an empty range only where it is used. Windows, not
// documents, are split: exact proportions even for one long document, and the same range for the
// same counts.
std::array<SampleRange, 3> split_windows(int64_t num_windows, std::string_view split);

}  // namespace halfstep::data
