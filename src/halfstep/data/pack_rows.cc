#include "halfstep/data/pack_rows.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "halfstep/core/error.h"

namespace halfstep::data {

Rows pack_rows(std::span<const int64_t> lengths, int64_t capacity) {
  std::vector<int64_t> by_length(lengths.size());
  std::iota(by_length.begin(), by_length.end(), 0);
  std::stable_sort(by_length.begin(), by_length.end(),
                   [&](int64_t a, int64_t b) { return lengths[a] > lengths[b]; });

  std::vector<int64_t> row_of(lengths.size());
  std::map<int64_t, std::vector<int64_t>> rows_by_room;
  int64_t num_rows = 0;
  for (const int64_t e : by_length) {
    check(lengths[e] >= 1 && lengths[e] <= capacity, "pack_rows: an example that fits into no row");
    const auto fit = rows_by_room.lower_bound(lengths[e]);
    int64_t row = num_rows, room = capacity;
    if (fit == rows_by_room.end()) {
      ++num_rows;
    } else {
      room = fit->first;
      row = fit->second.back();
      fit->second.pop_back();
      if (fit->second.empty()) rows_by_room.erase(fit);
    }
    row_of[e] = row;
    if (room > lengths[e]) rows_by_room[room - lengths[e]].push_back(row);
  }

  // Rows are numbered anew as their first examples come along, then each gets its examples.
  std::vector<int64_t> number(num_rows, -1), sizes;
  for (int64_t& row : row_of) {
    if (number[row] < 0) {
      number[row] = static_cast<int64_t>(sizes.size());
      sizes.push_back(0);
    }
    row = number[row];
    ++sizes[row];
  }
  Rows rows;
  std::vector<int64_t> next;
  for (const int64_t size : sizes) {
    next.push_back(rows.starts.back());
    rows.starts.push_back(rows.starts.back() + size);
  }
  rows.examples.resize(lengths.size());
  for (size_t e = 0; e < row_of.size(); ++e) {
    rows.examples[next[row_of[e]]++] = static_cast<int64_t>(e);
  }
  return rows;
}

Rows one_per_row(int64_t n) {
  Rows rows;
  rows.examples.resize(n);
  rows.starts.resize(n + 1);
  std::iota(rows.examples.begin(), rows.examples.end(), 0);
  std::iota(rows.starts.begin(), rows.starts.end(), 0);
  return rows;
}

}  // namespace halfstep::data
