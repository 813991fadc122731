// What an implementation of the kernels is: a table of bodies that each work through one contiguous
// range on one thread. Slicing, threads, argument checks and the choice of a table live once, in
// adamw.cc, vector_ops.cc and implementation.cc; a body sees valid arguments only.
//
// Every body
//  - runs with FTZ and DAZ already set (fp_environment.h) and must not change the environment,
//  - allocates nothing, and touches nothing outside its range,
//  - takes pointers aligned to their element and no more, any n ≥ 0, any `first`, and writes the
//    bits of reference_table()'s body (docs/numerics.md; any NaN equals any NaN).
// Internal to the kernels and their tests.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "halfstep/core/dtype.h"
#include "halfstep/kernels/adamw.h"
#include "halfstep/kernels/vector_ops.h"

namespace halfstep::kernels {

// A contiguous piece of a slice: `n` elements whose noise addresses are first, first + 1, ….
struct AdamwRun {
  void* weight;
  void* master;  // null for MasterMode::kNone
  const void* grad;
  void* exp_avg;
  void* exp_avg_sq;
  void* max_exp_avg_sq;  // null without amsgrad
  int64_t n;
  int64_t first;
  uint64_t seed;
  uint64_t name_hash;
  int64_t t;
  AdamwScalars scalars;

  NoiseStream noise(NoisePurpose purpose) const {
    return {.seed = seed, .name_hash = name_hash, .step = t, .purpose = purpose};
  }
};

// The same noise, `elements` further on.
inline NoiseRun advanced(const NoiseRun& noise, int64_t elements) {
  return {.stream = noise.stream, .first = noise.first + elements};
}

// sum_squares adds up runs of this many elements of an array (the last one shorter).
inline constexpr int64_t kSumSquaresRun = 4096;

struct KernelTable {
  std::string_view name;

  // Returns how many finite exp_avg_sq values saturated.
  int64_t (*adamw)(const AdamwFormat& format, const AdamwRun& run);

  // The dtypes differ, and one of them is kF32.
  void (*convert)(void* dst, Dtype dst_dtype, const void* src, Dtype src_dtype, int64_t n,
                  Rounding rounding, const NoiseRun& noise);
  void (*accumulate)(void* dst, Dtype dst_dtype, const void* src, Dtype src_dtype, int64_t n,
                     Rounding rounding, const NoiseRun& noise);

  // n ≤ kSumSquaresRun. Element j goes to lane j mod 8, in order; then, for the lanes l,
  // s[j] = l[j] + l[j+4], u[j] = s[j] + s[j+2], u[0] + u[1]. Squares are exact in FP64.
  double (*sum_squares_run)(const void* x, Dtype dtype, int64_t n);

  // The elements [begin, begin + n) of whole arrays. All contributions of an element are read
  // before it is written: dst may be one of them.
  void (*sum_ranks)(float* dst, std::span<const void* const> contributions, Dtype dtype,
                    int64_t begin, int64_t n);

  // Returns how many values lost one ulp in a tie.
  int64_t (*split)(uint16_t* weight, int16_t* remainder, const float* master, int64_t n);
  void (*join)(float* master, const uint16_t* weight, const int16_t* remainder, int64_t n);

  void (*init_normal)(void* dst, Dtype dtype, int64_t n, double std, const NoiseRun& noise);
};

// Plain loops over docs/numerics.md; supports everything on every machine.
const KernelTable& reference_table();

// The table in use (implementation.cc).
const KernelTable& current_table();

}  // namespace halfstep::kernels
