// Which examples share a row: a pure function of their lengths.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace halfstep::data {

// Lists of examples, one after the other.
struct Rows {
  std::vector<int64_t> examples;
  std::vector<int64_t> starts{0};  // of each row in `examples`, and their end

  int64_t size() const { return static_cast<int64_t>(starts.size()) - 1; }
  std::span<const int64_t> operator[](int64_t row) const {
    return std::span(examples).subspan(starts[row], starts[row + 1] - starts[row]);
  }
};

// Best fit, longest first: each example, from the longest to the shortest, goes to the row with the
// least room that holds it. No more than 11/9 of the fewest possible rows and one; n · log n.
// Examples of a row are in the order of their numbers, and rows in that of their first example, so
// that the first rows are no different from the others. Every length is in [1, capacity].
Rows pack_rows(std::span<const int64_t> lengths, int64_t capacity);

// A row for each of n examples.
Rows one_per_row(int64_t n);

}  // namespace halfstep::data
