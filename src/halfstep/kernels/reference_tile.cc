#include "halfstep/kernels/reference_tile.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "halfstep/core/bf16.h"
#include "halfstep/core/philox.h"
#include "halfstep/core/split_weight.h"
#include "halfstep/core/ue6m10.h"

namespace halfstep::kernels::reference {

void decode(float* out, const void* src, Dtype dtype, int64_t begin, int64_t n) {
  if (dtype == Dtype::kF32) {
    std::memcpy(out, static_cast<const float*>(src) + begin,
                static_cast<size_t>(n) * sizeof(float));
    return;
  }
  const uint16_t* codes = static_cast<const uint16_t*>(src) + begin;
  if (dtype == Dtype::kBF16) {
    for (int64_t i = 0; i < n; ++i) out[i] = bf16_decode(codes[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) out[i] = ue6m10_decode(codes[i]);
  }
}

void encode(void* dst, Dtype dtype, int64_t begin, const float* x, int64_t n, Rounding rounding,
            const NoiseRun& noise) {
  if (dtype == Dtype::kF32) {
    std::memcpy(static_cast<float*>(dst) + begin, x, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  uint16_t* codes = static_cast<uint16_t*>(dst) + begin;
  if (rounding == Rounding::kNearest) {
    if (dtype == Dtype::kBF16) {
      for (int64_t i = 0; i < n; ++i) codes[i] = bf16_nearest(x[i]);
    } else {
      for (int64_t i = 0; i < n; ++i) codes[i] = ue6m10_nearest(x[i]);
    }
    return;
  }
  uint16_t random[kTileElements];
  fill_noise(random, noise, n);
  if (dtype == Dtype::kBF16) {
    for (int64_t i = 0; i < n; ++i) codes[i] = bf16_stochastic(x[i], random[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) codes[i] = ue6m10_stochastic(x[i], random[i]);
  }
}

void fill_noise(uint16_t* out, const NoiseRun& noise, int64_t n) {
  const PhiloxKey key = noise.stream.key();
  for (int64_t i = 0; i < n;) {
    const uint64_t element = static_cast<uint64_t>(noise.first + i);
    const PhiloxCounter words = philox4x32_10(noise.stream.counter(element / 8), key);
    for (uint64_t j = element % 8; j < 8 && i < n; ++j, ++i) {
      out[i] = static_cast<uint16_t>(words[j / 2] >> (j % 2 * 16));
    }
  }
}

namespace {

bool is_split(const AdamwFormat& format) {
  return format.weight == Dtype::kBF16 && format.master == MasterMode::kSplit;
}

}  // namespace

void load_tile(AdamwTile& tile, const AdamwFormat& format, const AdamwRun& run, int64_t begin,
               int64_t n) {
  if (is_split(format)) {
    const uint16_t* weight = static_cast<const uint16_t*>(run.weight) + begin;
    const int16_t* remainder = static_cast<const int16_t*>(run.master) + begin;
    for (int64_t i = 0; i < n; ++i) tile.w[i] = join_f32(weight[i], remainder[i]);
  } else if (format.master == MasterMode::kFp32) {
    decode(tile.w, run.master, Dtype::kF32, begin, n);
  } else {
    decode(tile.w, run.weight, format.weight, begin, n);
  }
  decode(tile.g, run.grad, format.grad, begin, n);
  decode(tile.m, run.exp_avg, format.exp_avg, begin, n);
  decode(tile.v, run.exp_avg_sq, format.exp_avg_sq, begin, n);
  if (format.amsgrad) decode(tile.u, run.max_exp_avg_sq, format.exp_avg_sq, begin, n);
}

void step_tile(AdamwTile& tile, const AdamwScalars& k, bool amsgrad, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = k.s * tile.g[i];
    tile.m[i] = tile.m[i] + k.c1 * (g - tile.m[i]);
    tile.v[i] = k.b2 * tile.v[i] + k.c2 * (g * g);
  }
  if (amsgrad) {
    for (int64_t i = 0; i < n; ++i) {
      if (tile.v[i] > tile.u[i] || std::isnan(tile.v[i])) tile.u[i] = tile.v[i];
    }
  }
  const float* second_moment = amsgrad ? tile.u : tile.v;
  for (int64_t i = 0; i < n; ++i) {
    const float d = std::sqrt(second_moment[i]) * k.r + k.eps;
    // Decay and update meet in FP32 and change the weight with one rounding.
    tile.w[i] = tile.w[i] - (k.a * (tile.m[i] / d) + k.q * tile.w[i]);
  }
}

int64_t store_tile(const AdamwTile& tile, const AdamwFormat& format, const AdamwRun& run,
                   int64_t begin, int64_t n) {
  const auto noise = [&](NoisePurpose purpose) {
    return NoiseRun{.stream = run.noise(purpose), .first = run.first + begin};
  };
  if (is_split(format)) {
    uint16_t* weight = static_cast<uint16_t*>(run.weight) + begin;
    int16_t* remainder = static_cast<int16_t*>(run.master) + begin;
    for (int64_t i = 0; i < n; ++i) {
      const SplitWeight split = split_f32(tile.w[i]);
      weight[i] = split.weight;
      remainder[i] = split.remainder;
    }
  } else {
    const bool has_master = format.master == MasterMode::kFp32;
    if (has_master) encode(run.master, Dtype::kF32, begin, tile.w, n, Rounding::kNearest, {});
    encode(run.weight, format.weight, begin, tile.w, n,
           has_master ? Rounding::kNearest : Rounding::kStochastic, noise(NoisePurpose::kWeight));
  }
  encode(run.exp_avg, format.exp_avg, begin, tile.m, n, format.exp_avg_rounding,
         noise(NoisePurpose::kExpAvg));
  encode(run.exp_avg_sq, format.exp_avg_sq, begin, tile.v, n, format.exp_avg_sq_rounding,
         noise(NoisePurpose::kExpAvgSq));
  if (format.amsgrad) {
    // Never stochastic: the maximum of noisy values would ratchet upwards.
    encode(run.max_exp_avg_sq, format.exp_avg_sq, begin, tile.u, n, Rounding::kNearest, {});
  }
  if (format.exp_avg_sq != Dtype::kUE6M10) return 0;
  return std::count_if(tile.v, tile.v + n, ue6m10_saturates);
}

}  // namespace halfstep::kernels::reference
