// Encoding and decoding of whole arrays by groups (codec-inl.h), for whatever is not an AdamW
// template. Ragged ends and groups with anything unusual go to the reference.
#if defined(HALFSTEP_KERNELS_CPU_TILE_CODEC_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HALFSTEP_KERNELS_CPU_TILE_CODEC_INL_H_
#undef HALFSTEP_KERNELS_CPU_TILE_CODEC_INL_H_
#else
#define HALFSTEP_KERNELS_CPU_TILE_CODEC_INL_H_
#endif

#include <algorithm>

#include "halfstep/kernels/cpu/adamw_run.h"
#include "halfstep/kernels/cpu/codec-inl.h"
#include "halfstep/kernels/cpu/noise-inl.h"
#include "halfstep/kernels/cpu/path_counters.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace halfstep::kernels::HWY_NAMESPACE {

// dst[i] = round(source(i)) for i < n. source(i, unusual) gives the Pair of a group;
// by_reference(i, count) does the same for elements that are not ordinary or not a whole block.
template <Dtype kDtype, Rounding kRounding, class Source, class ByReference>
HWY_INLINE void encode_blocks(void* dst, int64_t n, const NoiseRun& noise, const Source& source,
                              const ByReference& by_reference) {
  constexpr bool kNoisy = kRounding == Rounding::kStochastic;
  const auto hand_over = [&](int64_t i, int64_t count) {
    PathCounters::add(path_counters.handed_over, count);
    by_reference(i, count);
  };
  for (int64_t i = 0; i < n;) {
    int64_t end = n;
    if (kNoisy) {
      const int64_t first = noise.first + i;
      end = std::min(n, i + kNoiseSpan - first % kNoiseSpan);
      const int64_t lead = std::min(end - i, (kNoiseBlock - first % kNoiseBlock) % kNoiseBlock);
      if (lead > 0) {
        hand_over(i, lead);
        i += lead;
        continue;
      }
    }
    Noise<kDtype, kRounding> lanes(noise.stream, noise.first + i);
    for (; i + kBlock <= end; i += kBlock) {
      const auto random = lanes.next();
      VecU16 unusual = hn::Zero(u16);
      const VecU16 first =
          encode<kDtype, kRounding, NaN::kReport>(source(i, unusual), random.first, unusual);
      const VecU16 second = encode<kDtype, kRounding, NaN::kReport>(source(i + kGroup, unusual),
                                                                    random.second, unusual);
      if (HWY_UNLIKELY(any(unusual))) {
        hand_over(i, kBlock);
      } else {
        store_u16(first, dst, i);
        store_u16(second, dst, i + kGroup);
      }
    }
    if (i < end) {
      hand_over(i, end - i);
      i = end;
    }
  }
}

// dst[i] = source(i) in FP32 for i < n; the same contract.
template <class Source, class ByReference>
HWY_INLINE void store_f32_groups(float* dst, int64_t n, const Source& source,
                                 const ByReference& by_reference) {
  const auto hand_over = [&](int64_t i, int64_t count) {
    PathCounters::add(path_counters.handed_over, count);
    by_reference(i, count);
  };
  int64_t i = 0;
  for (; i + kGroup <= n; i += kGroup) {
    VecU16 unusual = hn::Zero(u16);
    const Pair x = source(i, unusual);
    if (HWY_UNLIKELY(any(unusual))) {
      hand_over(i, kGroup);
    } else {
      store_f32(x, dst, i);
    }
  }
  if (i < n) hand_over(i, n - i);
}

}  // namespace halfstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR

#endif  // include guard, once per target
