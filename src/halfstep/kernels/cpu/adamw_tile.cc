// The AdamW step of every format that has no template: a tile of the run is decoded to FP32 in the
// first-level cache, stepped there, and encoded back. Still one pass over memory.
#include <algorithm>
#include <cstring>

#include "halfstep/core/ue6m10.h"
#include "halfstep/kernels/cpu/adamw_run.h"
#include "halfstep/kernels/cpu/path_counters.h"
#include "halfstep/kernels/cpu/simd_kernels.h"
#include "halfstep/kernels/cpu/targets.h"
#include "halfstep/kernels/reference_tile.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "halfstep/kernels/cpu/adamw_tile.cc"
// foreach_target.h has to come first.
// clang-format off
#include "hwy/foreach_target.h"
#include "halfstep/kernels/cpu/adamw_core-inl.h"
#include "halfstep/kernels/cpu/codec-inl.h"
// clang-format on

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace halfstep::kernels::HWY_NAMESPACE {
namespace {

using reference::AdamwTile;
using reference::kTileElements;

// Steps whole vectors; the tile's elements beyond n are its own, so what happens to them is free.
template <bool kAmsgrad>
void step(AdamwTile& tile, const AdamwScalars& scalars, int64_t n) {
  const AdamwCore core(scalars);
  for (int64_t i = 0; i < n; i += HWY_LANES(float)) {
    VecF32 w = hn::LoadU(f32, tile.w + i), m = hn::LoadU(f32, tile.m + i);
    VecF32 v = hn::LoadU(f32, tile.v + i);
    core.moments(hn::LoadU(f32, tile.g + i), m, v);
    VecF32 second_moment = v;
    if constexpr (kAmsgrad) {
      second_moment = core.maximum(hn::LoadU(f32, tile.u + i), v);
      hn::StoreU(second_moment, f32, tile.u + i);
    }
    w = core.updated(w, core.ratio(m, hn::Sqrt(second_moment)));
    hn::StoreU(w, f32, tile.w + i);
    hn::StoreU(m, f32, tile.m + i);
    hn::StoreU(v, f32, tile.v + i);
  }
}

// Nearly always none, which a look at whole vectors shows; those may reach into elements beyond n.
// No maximum: what that makes of a NaN would hide the values before it.
int64_t count_saturated(const AdamwTile& tile, int64_t n) {
  const VecF32 limit = hn::Set(f32, 2046.0f);
  VecF32 above = hn::Zero(f32);
  for (int64_t i = 0; i < n; i += HWY_LANES(float)) {
    const VecF32 v = hn::LoadU(f32, tile.v + i);
    above = hn::Or(above, hn::IfThenElseZero(hn::Gt(v, limit), v));
  }
  if (hn::AllTrue(f32, hn::Eq(above, hn::Zero(f32)))) return 0;
  return std::count_if(tile.v, tile.v + n, ue6m10_saturates);
}

bool is_split(const AdamwFormat& format) { return format.master == MasterMode::kSplit; }

void load_tile(AdamwTile& tile, const AdamwFormat& format, const AdamwRun& run, int64_t n) {
  if (is_split(format)) {
    join(tile.w, static_cast<const uint16_t*>(run.weight), static_cast<const int16_t*>(run.master),
         n);
  } else if (format.master == MasterMode::kFp32) {
    std::memcpy(tile.w, run.master, static_cast<size_t>(n) * sizeof(float));
  } else {
    decode(tile.w, run.weight, format.weight, n);
  }
  decode(tile.g, run.grad, format.grad, n);
  decode(tile.m, run.exp_avg, format.exp_avg, n);
  decode(tile.v, run.exp_avg_sq, format.exp_avg_sq, n);
  if (format.amsgrad) decode(tile.u, run.max_exp_avg_sq, format.exp_avg_sq, n);
}

void store_tile(const AdamwTile& tile, const AdamwFormat& format, const AdamwRun& run, int64_t n) {
  const auto noise = [&](NoisePurpose purpose) {
    return NoiseRun{.stream = run.noise(purpose), .first = run.first};
  };
  if (is_split(format)) {
    split(static_cast<uint16_t*>(run.weight), static_cast<int16_t*>(run.master), tile.w, n);
  } else {
    const bool has_master = format.master == MasterMode::kFp32;
    if (has_master) std::memcpy(run.master, tile.w, static_cast<size_t>(n) * sizeof(float));
    encode(run.weight, format.weight, tile.w, n,
           has_master ? Rounding::kNearest : Rounding::kStochastic, noise(NoisePurpose::kWeight));
  }
  encode(run.exp_avg, format.exp_avg, tile.m, n, format.exp_avg_rounding,
         noise(NoisePurpose::kExpAvg));
  encode(run.exp_avg_sq, format.exp_avg_sq, tile.v, n, format.exp_avg_sq_rounding,
         noise(NoisePurpose::kExpAvgSq));
  if (format.amsgrad) {
    encode(run.max_exp_avg_sq, format.exp_avg_sq, tile.u, n, Rounding::kNearest, {});
  }
}

}  // namespace

int64_t adamw_by_tiles(const AdamwFormat& format, const AdamwRun& run) {
  AdamwTile tile;
  std::memset(&tile, 0, sizeof(tile));
  int64_t saturated = 0;
  for (int64_t done = 0; done < run.n;) {
    // Tiles end at multiples of their size, so that all but the first begin on a block of noise.
    const int64_t to_boundary = kTileElements - (run.first + done) % kTileElements;
    const int64_t n = std::min(run.n - done, to_boundary);
    const AdamwRun part = part_of(format, run, done, n);
    load_tile(tile, format, part, n);
    if (format.amsgrad) {
      step<true>(tile, run.scalars, n);
    } else {
      step<false>(tile, run.scalars, n);
    }
    store_tile(tile, format, part, n);
    if (format.exp_avg_sq == Dtype::kUE6M10) {
      saturated += count_saturated(tile, n);
    }
    done += n;
  }
  return saturated;
}

}  // namespace halfstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR
