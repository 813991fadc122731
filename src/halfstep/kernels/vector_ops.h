// The other passes over memory that the optimizer needs: accumulation, conversion, norm,
// rank-ordered sum, split and join, initial weights (docs/numerics.md §4–§7). All are bit-equal in
// every implementation and for any number of threads, and none allocates.
#pragma once

#include <cstdint>
#include <span>

#include "halfstep/core/dtype.h"
#include "halfstep/core/philox.h"
#include "halfstep/core/thread_pool.h"

namespace halfstep::kernels {

// A run of n elements of one parameter that starts at flat index `first` of the whole parameter,
// with the address of its rounding noise (used only by stochastic rounding).
struct NoiseRun {
  NoiseStream stream;
  int64_t first = 0;
};

// dst[i] = round(src[i]). Any pair of kF32, kBF16, kUE6M10 with kF32 on one side, or equal types (a
// copy). A negative value has no ue6m10: it becomes NaN here (docs/numerics.md §3).
void convert(void* dst, Dtype dst_dtype, const void* src, Dtype src_dtype, int64_t n,
             Rounding rounding, const NoiseRun& noise, ThreadPool& pool = ThreadPool::global());

// Adds a contribution to an accumulated gradient: dst[i] = round(dst[i] + src[i]) in FP32.
// dst and src are kF32 or kBF16. The first contribution of a step is a convert instead.
void accumulate(void* dst, Dtype dst_dtype, const void* src, Dtype src_dtype, int64_t n,
                Rounding rounding, const NoiseRun& noise, ThreadPool& pool = ThreadPool::global());

// Σ x², in FP64 and in the order of docs/numerics.md §7: runs of 4096 into 8 lanes, lanes by a
// fixed tree, runs by a pairwise tree. Non-finite if any element is. x is kF32 or kBF16.
double sum_squares(const void* x, Dtype dtype, int64_t n, ThreadPool& pool = ThreadPool::global());

// dst[i] = x_0[i] + x_1[i] + …, added in FP32 in rank order from rank 0's value. dst may be the
// storage of one contribution only if that is FP32.
void sum_ranks(float* dst, std::span<const void* const> contributions, Dtype dtype, int64_t n,
               ThreadPool& pool = ThreadPool::global());

// The split master (docs/numerics.md §6). split returns how many values lost one ulp in a tie.
int64_t split_master(uint16_t* weight, int16_t* remainder, const float* master, int64_t n,
                     ThreadPool& pool = ThreadPool::global());
void join_master(float* master, const uint16_t* weight, const int16_t* remainder, int64_t n,
                 ThreadPool& pool = ThreadPool::global());

// Initial weights: RNE(std · z) with the z of docs/numerics.md §5, a function of (seed, name,
// element) alone. noise.stream.purpose must be kInit, step 0. dst is kF32 or kBF16.
void init_normal(void* dst, Dtype dtype, int64_t n, double std, const NoiseRun& noise,
                 ThreadPool& pool = ThreadPool::global());

}  // namespace halfstep::kernels
