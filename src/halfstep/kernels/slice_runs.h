// From slices to runs: argument checks, and the cut of a piece of a slice into runs whose noise
// addresses are consecutive. Shared by the AdamW step and by rounding health.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "halfstep/kernels/chunks.h"
#include "halfstep/kernels/kernel_table.h"

namespace halfstep::kernels {

// Noise addresses stay below 2^48 blocks of 8 (docs/numerics.md §5).
inline constexpr int64_t kMaxElements = int64_t{8} << 48;

// Throws UsageError if `first`, `n` do not name elements of a parameter with addressable noise.
void check_noise_range(int64_t first, int64_t n);

// Throws UsageError if no kernel can work on these: an impossible format, a missing pointer, a
// rectangle outside its parameter, an address beyond the noise, a scalar that is not finite.
void check_adamw_arguments(const AdamwFormat& format, std::span<const AdamwSlice> slices);

inline void* advance(void* base, Dtype dtype, int64_t elements) {
  return base ? static_cast<char*>(base) + elements * dtype_bytes(dtype) : nullptr;
}
inline const void* advance(const void* base, Dtype dtype, int64_t elements) {
  return advance(const_cast<void*>(base), dtype, elements);
}

// The run of `n` elements of a slice that starts at its element `begin`, all in one row of the
// whole parameter or in whole rows of it.
inline AdamwRun make_run(const AdamwFormat& format, const AdamwSlice& slice, uint64_t seed,
                         int64_t begin, int64_t n) {
  const int64_t row = begin / slice.cols, col = begin % slice.cols;
  const Dtype master = format.master == MasterMode::kSplit ? Dtype::kI16 : Dtype::kF32;
  return {
      .weight = advance(slice.weight, format.weight, begin),
      .master = format.master == MasterMode::kNone ? nullptr : advance(slice.master, master, begin),
      .grad = advance(slice.grad, format.grad, begin),
      .exp_avg = advance(slice.exp_avg, format.exp_avg, begin),
      .exp_avg_sq = advance(slice.exp_avg_sq, format.exp_avg_sq, begin),
      .max_exp_avg_sq =
          format.amsgrad ? advance(slice.max_exp_avg_sq, format.exp_avg_sq, begin) : nullptr,
      .n = n,
      .first = (slice.global_row0 + row) * slice.global_cols + slice.global_col0 + col,
      .seed = seed,
      .name_hash = slice.name_hash,
      .t = slice.t,
      .scalars = *slice.scalars,
  };
}

// body(run) for each run of a piece: one for whole rows of a parameter, one per row for a column
// cut.
template <typename Body>
void for_each_run(const AdamwFormat& format, const SliceChunks::Piece& piece, uint64_t seed,
                  Body&& body) {
  const AdamwSlice& slice = *piece.slice;
  const int64_t end = piece.begin + piece.count;
  const bool whole_rows = slice.cols == slice.global_cols;
  for (int64_t begin = piece.begin; begin < end;) {
    const int64_t row_end = whole_rows ? end : (begin / slice.cols + 1) * slice.cols;
    const int64_t n = std::min(row_end, end) - begin;
    body(make_run(format, slice, seed, begin, n));
    begin += n;
  }
}

}  // namespace halfstep::kernels
