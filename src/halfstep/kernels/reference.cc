// The reference implementation: docs/numerics.md in plain loops. It ships as the last row of the
// implementation list, so no mix of formats is ever unsupported.
#include <algorithm>

#include "halfstep/core/bf16.h"
#include "halfstep/core/philox.h"
#include "halfstep/core/split_weight.h"
#include "halfstep/kernels/kernel_table.h"
#include "halfstep/kernels/reference_tile.h"

namespace halfstep::kernels {
namespace {

using reference::kTileElements;

template <typename Body>
void for_each_tile(int64_t n, Body&& body) {
  for (int64_t begin = 0; begin < n; begin += kTileElements) {
    body(begin, std::min(kTileElements, n - begin));
  }
}

int64_t adamw(const AdamwFormat& format, const AdamwRun& run) {
  reference::AdamwTile tile;
  int64_t saturated = 0;
  for_each_tile(run.n, [&](int64_t begin, int64_t n) {
    load_tile(tile, format, run, begin, n);
    step_tile(tile, run.scalars, format.amsgrad, n);
    saturated += store_tile(tile, format, run, begin, n);
  });
  return saturated;
}

void convert(void* dst, Dtype dst_dtype, const void* src, Dtype src_dtype, int64_t n,
             Rounding rounding, const NoiseRun& noise) {
  float x[kTileElements];
  for_each_tile(n, [&](int64_t begin, int64_t count) {
    reference::decode(x, src, src_dtype, begin, count);
    reference::encode(dst, dst_dtype, begin, x, count, rounding, advanced(noise, begin));
  });
}

void accumulate(void* dst, Dtype dst_dtype, const void* src, Dtype src_dtype, int64_t n,
                Rounding rounding, const NoiseRun& noise) {
  float sum[kTileElements], x[kTileElements];
  for_each_tile(n, [&](int64_t begin, int64_t count) {
    reference::decode(sum, dst, dst_dtype, begin, count);
    reference::decode(x, src, src_dtype, begin, count);
    for (int64_t i = 0; i < count; ++i) sum[i] = sum[i] + x[i];
    reference::encode(dst, dst_dtype, begin, sum, count, rounding, advanced(noise, begin));
  });
}

double sum_squares_run(const void* x, Dtype dtype, int64_t n) {
  float tile[kTileElements];
  double lane[8] = {};
  for_each_tile(n, [&](int64_t begin, int64_t count) {
    reference::decode(tile, x, dtype, begin, count);
    for (int64_t i = 0; i < count; ++i) {
      const double value = tile[i];
      lane[i % 8] += value * value;  // a tile is a multiple of 8
    }
  });
  for (int width = 4; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) lane[j] += lane[j + width];
  }
  return lane[0];
}

void sum_ranks(float* dst, std::span<const void* const> contributions, Dtype dtype, int64_t begin,
               int64_t n) {
  float sum[kTileElements], x[kTileElements];
  for_each_tile(n, [&](int64_t offset, int64_t count) {
    reference::decode(sum, contributions[0], dtype, begin + offset, count);
    for (const void* contribution : contributions.subspan(1)) {
      reference::decode(x, contribution, dtype, begin + offset, count);
      for (int64_t i = 0; i < count; ++i) sum[i] = sum[i] + x[i];
    }
    reference::encode(dst, Dtype::kF32, begin + offset, sum, count, Rounding::kNearest, {});
  });
}

int64_t split(uint16_t* weight, int16_t* remainder, const float* master, int64_t n) {
  int64_t lost = 0;
  for (int64_t i = 0; i < n; ++i) {
    const SplitWeight s = split_f32(master[i]);
    weight[i] = s.weight;
    remainder[i] = s.remainder;
    lost += s.lost_ulp;
  }
  return lost;
}

void join(float* master, const uint16_t* weight, const int16_t* remainder, int64_t n) {
  for (int64_t i = 0; i < n; ++i) master[i] = join_f32(weight[i], remainder[i]);
}

void init_normal(void* dst, Dtype dtype, int64_t n, double std, const NoiseRun& noise) {
  const PhiloxKey key = noise.stream.key();
  for (int64_t i = 0; i < n; ++i) {
    // A whole block of 8 random numbers for each element.
    const uint64_t block = static_cast<uint64_t>(noise.first + i);
    int64_t sum = 0;
    for (uint32_t word : philox4x32_10(noise.stream.counter(block), key)) {
      sum += (word & 0xFFFF) + (word >> 16);
    }
    // Mean and standard deviation of the sum of 8 uniform integers below 65536.
    const double value = std * (static_cast<double>(sum - 262'140) / 53'509.9);
    if (dtype == Dtype::kF32) {
      static_cast<float*>(dst)[i] = static_cast<float>(value);
    } else {
      static_cast<uint16_t*>(dst)[i] = bf16_nearest(value);
    }
  }
}

}  // namespace

const KernelTable& reference_table() {
  static constexpr KernelTable table = {
      .name = "reference",
      .adamw = adamw,
      .convert = convert,
      .accumulate = accumulate,
      .sum_squares_run = sum_squares_run,
      .sum_ranks = sum_ranks,
      .split = split,
      .join = join,
      .init_normal = init_normal,
  };
  return table;
}

}  // namespace halfstep::kernels
