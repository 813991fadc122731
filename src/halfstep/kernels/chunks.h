// How the kernels' work is cut for threads: contiguous chunks of an array, or of a list of slices.
// A chunk's bounds depend on the sizes alone, never on the threads. Internal to the drivers.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>

#include "halfstep/core/thread_pool.h"
#include "halfstep/kernels/adamw.h"
#include "halfstep/kernels/fp_environment.h"

namespace halfstep::kernels {

// A chunk takes tens of microseconds and is a multiple of every tile and vector.
inline constexpr int64_t kChunkElements = 64 * 1024;

constexpr int64_t chunks_of(int64_t n) { return (n + kChunkElements - 1) / kChunkElements; }

// body(begin, count) for each chunk of [0, n), in the kernels' floating-point environment.
template <typename Body>
void for_each_chunk(ThreadPool& pool, int64_t n, Body&& body) {
  pool.parallel_for(chunks_of(n), [&](int64_t chunk) {
    const KernelFpEnvironment environment;
    const int64_t begin = chunk * kChunkElements;
    body(begin, std::min(kChunkElements, n - begin));
  });
}

// The chunks of a list of slices, numbered through. seek() must be asked for rising numbers, which
// makes a walk over all chunks linear in the number of slices without a table.
class SliceChunks {
 public:
  struct Piece {
    const AdamwSlice* slice;
    int64_t begin, count;  // elements of the slice
  };

  explicit SliceChunks(std::span<const AdamwSlice> slices) : slices_(slices) {}

  static int64_t count(std::span<const AdamwSlice> slices) {
    int64_t chunks = 0;
    for (const AdamwSlice& slice : slices) chunks += chunks_of(slice.rows * slice.cols);
    return chunks;
  }

  Piece seek(int64_t chunk) {
    for (;;) {
      const AdamwSlice& slice = slices_[slice_];
      const int64_t n = slice.rows * slice.cols;
      const int64_t begin = (chunk - first_chunk_) * kChunkElements;
      if (begin < n) return {&slice, begin, std::min(kChunkElements, n - begin)};
      first_chunk_ += chunks_of(n);
      ++slice_;
    }
  }

 private:
  std::span<const AdamwSlice> slices_;
  size_t slice_ = 0;
  int64_t first_chunk_ = 0;  // number of the first chunk of slice_
};

// body(chunk, piece) for each chunk in [first, last) of a list of slices, in the kernels'
// floating-point environment.
template <typename Body>
void for_each_slice_chunk(ThreadPool& pool, std::span<const AdamwSlice> slices, int64_t first,
                          int64_t last, Body&& body) {
  std::atomic<int64_t> next{first};
  const int64_t workers = std::min<int64_t>(pool.num_threads(), last - first);
  pool.parallel_for(workers, [&](int64_t) {
    const KernelFpEnvironment environment;
    SliceChunks chunks(slices);
    for (int64_t chunk; (chunk = next.fetch_add(1, std::memory_order_relaxed)) < last;) {
      body(chunk, chunks.seek(chunk));
    }
  });
}

}  // namespace halfstep::kernels
