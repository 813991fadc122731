#include "halfstep/bench/stream.h"

#include <algorithm>

namespace halfstep::bench {
namespace {

// A page of each array in turn: long enough to vectorize, short enough that all arrays stream.
constexpr int64_t kStretch = 1024;

void scale(float* x, int64_t n, float a) {
  for (int64_t i = 0; i < n; ++i) x[i] *= a;
}

}  // namespace

void scale_in_place(std::span<float* const> arrays, int64_t n, float a, ThreadPool& pool) {
  constexpr int64_t kChunk = 64 * 1024;
  pool.parallel_for((n + kChunk - 1) / kChunk, [&](int64_t chunk) {
    const int64_t end = std::min(n, (chunk + 1) * kChunk);
    for (int64_t i = chunk * kChunk; i < end; i += kStretch) {
      for (float* array : arrays) scale(array + i, std::min(kStretch, end - i), a);
    }
  });
}

}  // namespace halfstep::bench
