// The pieces that the reference kernels are made of, each over a tile that stays in the first-level
// cache: decode to FP32, compute, encode. Plain loops, one statement per line of docs/numerics.md.
#pragma once

#include <cstdint>

#include "halfstep/core/dtype.h"
#include "halfstep/kernels/kernel_table.h"

namespace halfstep::kernels::reference {

inline constexpr int64_t kTileElements = 512;

// out[i] = src[begin + i] in FP32, i < n ≤ kTileElements.
void decode(float* out, const void* src, Dtype dtype, int64_t begin, int64_t n);

// dst[begin + i] = round(x[i]), i < n ≤ kTileElements. noise.first is the address of element
// `begin`; used for stochastic rounding alone.
void encode(void* dst, Dtype dtype, int64_t begin, const float* x, int64_t n, Rounding rounding,
            const NoiseRun& noise);

// The 16 random bits of n ≤ kTileElements elements.
void fill_noise(uint16_t* out, const NoiseRun& noise, int64_t n);

// A tile of the AdamW step in FP32. After step_tile() w, m, v and u hold the exact results, not yet
// rounded to their formats.
struct AdamwTile {
  float w[kTileElements];
  float g[kTileElements];
  float m[kTileElements];
  float v[kTileElements];
  float u[kTileElements];  // the largest v so far; only with amsgrad
};
void load_tile(AdamwTile& tile, const AdamwFormat& format, const AdamwRun& run, int64_t begin,
               int64_t n);
void step_tile(AdamwTile& tile, const AdamwScalars& scalars, bool amsgrad, int64_t n);
// Rounds and stores; returns how many finite values of v saturated.
int64_t store_tile(const AdamwTile& tile, const AdamwFormat& format, const AdamwRun& run,
                   int64_t begin, int64_t n);

}  // namespace halfstep::kernels::reference
