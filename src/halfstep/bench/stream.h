// The roof of every pass over memory: x ← a·x over arrays at once, each element read and written
// once, cut into the same chunks for the same threads as the kernels.
#pragma once

#include <cstdint>
#include <span>

#include "halfstep/core/thread_pool.h"

namespace halfstep::bench {

void scale_in_place(std::span<float* const> arrays, int64_t n, float a, ThreadPool& pool);

}  // namespace halfstep::bench
