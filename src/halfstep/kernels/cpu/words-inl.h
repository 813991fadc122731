// The shape of the data inside a SIMD kernel. A 16-bit array is read as 32-bit words; the even
// elements of a vector of words are its low halves and the odd ones its high halves, so a shift and
// a mask (no widening, no shuffle) give two FP32 vectors, a Pair. FP32 arrays are brought into the
// same shape. A group is the 2N elements of one Pair (N FP32 lanes).
#if defined(HALFSTEP_KERNELS_CPU_WORDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HALFSTEP_KERNELS_CPU_WORDS_INL_H_
#undef HALFSTEP_KERNELS_CPU_WORDS_INL_H_
#else
#define HALFSTEP_KERNELS_CPU_WORDS_INL_H_
#endif

#include <cstdint>

#include "halfstep/core/dtype.h"
#include "halfstep/kernels/cpu/targets.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace halfstep::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using TagF32 = hn::ScalableTag<float>;
using TagU32 = hn::RebindToUnsigned<TagF32>;
using TagI32 = hn::RebindToSigned<TagF32>;
using TagU16 = hn::Repartition<uint16_t, TagF32>;
using TagI16 = hn::Repartition<int16_t, TagF32>;
using TagU64 = hn::Repartition<uint64_t, TagF32>;
using VecF32 = hn::Vec<TagF32>;
using VecU32 = hn::Vec<TagU32>;
using VecU16 = hn::Vec<TagU16>;
using VecU64 = hn::Vec<TagU64>;

inline constexpr TagF32 f32;
inline constexpr TagU32 u32;
inline constexpr TagI32 i32;
inline constexpr TagU16 u16;
inline constexpr TagI16 i16;
inline constexpr TagU64 u64;

inline constexpr int64_t kGroup = 2 * HWY_LANES(float);  // elements of a Pair
inline constexpr int64_t kBlock = 2 * kGroup;            // elements of one Philox call

// FP32 values (or their bits) of a group: lane k holds the elements 2k and 2k + 1.
struct Pair {
  VecF32 even, odd;
};
struct PairBits {
  VecU32 even, odd;
};

HWY_INLINE PairBits bits(Pair x) { return {hn::BitCast(u32, x.even), hn::BitCast(u32, x.odd)}; }
HWY_INLINE Pair floats(PairBits x) { return {hn::BitCast(f32, x.even), hn::BitCast(f32, x.odd)}; }

// 16-bit lanes: even ones (low halves) from `low`, odd ones (high halves) from `high`.
template <class V, class W>
HWY_INLINE VecU16 merge_halves(V high, W low) {
  return hn::OddEven(hn::BitCast(u16, high), hn::BitCast(u16, low));
}

// Upper and lower halves of the bits of a group, as 16-bit elements in memory order.
HWY_INLINE VecU16 upper_halves(PairBits x) {
  return merge_halves(x.odd, hn::ShiftRight<16>(x.even));
}
HWY_INLINE VecU16 lower_halves(PairBits x) {
  return merge_halves(hn::ShiftLeft<16>(x.odd), x.even);
}

// 16-bit elements as the upper halves (the rest zero) of a Pair, and as zero-extended integers.
HWY_INLINE PairBits as_upper_halves(VecU16 x) {
  const VecU32 words = hn::BitCast(u32, x);
  return {hn::ShiftLeft<16>(words), hn::And(words, hn::Set(u32, 0xFFFF0000u))};
}
HWY_INLINE PairBits zero_extended(VecU32 words) {
  return {hn::And(words, hn::Set(u32, 0xFFFFu)), hn::ShiftRight<16>(words)};
}

HWY_INLINE VecU16 load_u16(const void* base, int64_t i) {
  return hn::LoadU(u16, static_cast<const uint16_t*>(base) + i);
}
HWY_INLINE void store_u16(VecU16 x, void* base, int64_t i) {
  hn::StoreU(x, u16, static_cast<uint16_t*>(base) + i);
}
HWY_INLINE Pair load_f32(const void* base, int64_t i) {
  Pair x;
  hn::LoadInterleaved2(f32, static_cast<const float*>(base) + i, x.even, x.odd);
  return x;
}
HWY_INLINE void store_f32(Pair x, void* base, int64_t i) {
  hn::StoreInterleaved2(x.even, x.odd, f32, static_cast<float*>(base) + i);
}

// Makes the compiler compute x here and not later. Without it g++ sinks a division to its first
// use, where nothing is left to hide its latency.
template <class V>
HWY_INLINE void compute_here(V& x) {
  asm volatile("" : "+v"(x.raw));
}
HWY_INLINE void compute_here(Pair& x) {
  compute_here(x.even);
  compute_here(x.odd);
}

// Asks for the cache lines of `elements` elements that begin `kPrefetchAhead` after i. Reading past
// an array's end is harmless: a prefetch never faults.
inline constexpr int64_t kPrefetchAhead = 1024;
inline constexpr int64_t kCacheLine = 64;
HWY_INLINE void prefetch(const void* base, int64_t bytes_per_element, int64_t i, int64_t elements) {
  const char* line = static_cast<const char*>(base) + (i + kPrefetchAhead) * bytes_per_element;
  for (int64_t k = 0; k < elements * bytes_per_element; k += kCacheLine) {
    hwy::Prefetch(line + k);
  }
}

}  // namespace halfstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR

#endif  // include guard, once per target
