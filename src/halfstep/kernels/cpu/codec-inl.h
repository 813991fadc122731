// Decoding and encoding of a group (words-inl.h) for each storage format, by the rules of
// docs/numerics.md §3, §4 and §6 for ordinary values. What is not ordinary (NaN, Inf, values at a
// format's upper end) is not handled here but reported: every function that meets it sets bits of
// `unusual`, and whoever finds one set throws the group's results away and lets the reference
// compute it. So the common path has no special cases, and special cases have one implementation.
#if defined(HALFSTEP_KERNELS_CPU_CODEC_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HALFSTEP_KERNELS_CPU_CODEC_INL_H_
#undef HALFSTEP_KERNELS_CPU_CODEC_INL_H_
#else
#define HALFSTEP_KERNELS_CPU_CODEC_INL_H_
#endif

#include "halfstep/kernels/cpu/words-inl.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace halfstep::kernels::HWY_NAMESPACE {

// Which values of x a caller wants reported by flag_above; the least upper half of FP32 bits.
inline constexpr uint16_t kBf16LargestFinite = 0x7F7F;
inline constexpr uint16_t kBf16Infinity = 0x7F80;
inline constexpr uint16_t kUe6m10Limit = 0x44FF;  // 2040, below every value that can saturate

// Reports the 16-bit lanes of x that are, as unsigned numbers, ≥ limit.
HWY_INLINE void flag_from(VecU16& unusual, VecU16 x, uint16_t limit) {
  unusual = hn::Or(unusual, hn::SaturatedSub(x, hn::Set(u16, static_cast<uint16_t>(limit - 1))));
}
// The same for the magnitudes of sign-magnitude codes: x + x drops the sign.
HWY_INLINE void flag_magnitude_from(VecU16& unusual, VecU16 x, uint16_t limit) {
  flag_from(unusual, hn::Add(x, x), static_cast<uint16_t>(2 * limit));
}
// The same for the upper halves of the bits of two vectors of FP32 values, signs included.
HWY_INLINE void flag_bits_from(VecU16& unusual, PairBits x, uint16_t limit) {
  const VecU32 below = hn::Set(u32, (limit - 1u) << 16 | 0xFFFFu);
  const VecU16 larger = hn::BitCast(u16, hn::Max(x.even, x.odd));
  unusual = hn::Or(unusual, hn::SaturatedSub(larger, hn::BitCast(u16, below)));
}
HWY_INLINE bool any(VecU16 unusual) { return !hn::AllTrue(u16, hn::Eq(unusual, hn::Zero(u16))); }

// ---- decoding

// ue6m10: with f = the code's bits as exponent and mantissa of an FP32, two readings are linear in
// the code, (1 + mantissa)·2^(e−53) for e ≥ 1 and 2·f − 2^-52 for e = 0; the smaller one is always
// the right one.
HWY_INLINE VecF32 ue6m10_from_shifted(VecU32 code_times_8192) {
  const VecU32 normal = hn::Add(code_times_8192, hn::Set(u32, 74u << 23));
  const VecU32 doubled = hn::Add(code_times_8192, hn::Set(u32, 75u << 23));
  return hn::Min(hn::BitCast(f32, normal),
                 hn::Sub(hn::BitCast(f32, doubled), hn::Set(f32, 0x1p-52f)));
}

template <Dtype kDtype>
HWY_INLINE Pair load(const void* base, int64_t i, VecU16& unusual) {
  if constexpr (kDtype == Dtype::kF32) {
    return load_f32(base, i);
  } else if constexpr (kDtype == Dtype::kBF16) {
    return floats(as_upper_halves(load_u16(base, i)));
  } else {
    static_assert(kDtype == Dtype::kUE6M10);
    const VecU16 code = load_u16(base, i);
    flag_from(unusual, code, 0xFFFF);
    const PairBits wide = as_upper_halves(code);
    return {ue6m10_from_shifted(hn::ShiftRight<3>(wide.even)),
            ue6m10_from_shifted(hn::ShiftRight<3>(wide.odd))};
  }
}

// ---- rounding of 32-bit y to the upper half, docs/numerics.md §4

// Nearest, ties to even, in 16-bit lanes. A lower half rounds up if it is above one half, or is one
// half and the upper half is odd. So one is taken off it where the upper half is even (0 stays 0),
// and then `carry` rounds up from one half on: its highest bit says so.
struct Nearest {
  VecU16 rounded, carry;
};
HWY_INLINE Nearest nearest(VecU16 upper, VecU16 lower) {
  const VecU16 is_even = hn::AndNot(upper, hn::Set(u16, 1));
  const VecU16 carry = hn::SaturatedSub(lower, is_even);
  return {hn::Add(upper, hn::ShiftRight<15>(carry)), carry};
}

HWY_INLINE VecU16 stochastic(PairBits y, VecU32 random) {
  const PairBits r = zero_extended(random);
  return merge_halves(hn::Add(y.odd, r.odd), hn::ShiftRight<16>(hn::Add(y.even, r.even)));
}

// ---- encoding

// Truncation of values below 2^31; Highway's ConvertTo pays for larger ones too.
HWY_INLINE VecU32 truncate(VecF32 x) {
#if HWY_TARGET == HWY_AVX3
  return hn::BitCast(u32, hn::Vec<TagI32>{_mm512_cvttps_epi32(x.raw)});
#elif HWY_TARGET == HWY_AVX2
  return hn::BitCast(u32, hn::Vec<TagI32>{_mm256_cvttps_epi32(x.raw)});
#elif HWY_TARGET == HWY_SSE4
  return hn::BitCast(u32, hn::Vec<TagI32>{_mm_cvttps_epi32(x.raw)});
#else
  return hn::BitCast(u32, hn::ConvertTo(i32, x));
#endif
}

// The y of docs/numerics.md §4, whose rounded upper half is the code. Below 2^-52 it differs with
// the rounding: stochastic wants v·2^78 truncated; nearest wants the sticky bits too, so the FP32
// adder rounds v to a multiple of 2^-62 and y is exact.
template <Rounding kRounding>
HWY_INLINE VecU32 ue6m10_y(VecF32 v) {
  const VecU32 full = hn::Sub(hn::ShiftLeft<3>(hn::BitCast(u32, v)), hn::Set(u32, 74u << 26));
  VecU32 small;
  if constexpr (kRounding == Rounding::kStochastic) {
    small = truncate(hn::Mul(v, hn::Set(f32, 0x1p78f)));
  } else {
    small = hn::ShiftLeft<16>(hn::BitCast(u32, hn::Add(v, hn::Set(f32, 0x1p-39f))));
  }
  const auto is_small = hn::RebindMask(u32, hn::Lt(v, hn::Set(f32, 0x1p-52f)));
  return hn::IfThenElse(is_small, small, full);
}

// Stores x as kDtype. Reports NaN of a BF16 only under kReport: an AdamW step sees a NaN of any
// state in its new weight. kNonNegative is cheaper, and reports every value with a sign.
enum class NaN { kReport, kSeenElsewhere };
enum class Sign { kAny, kNonNegative };

template <Dtype kDtype, Rounding kRounding, NaN kNaN, Sign kSign = Sign::kAny>
HWY_INLINE VecU16 encode(Pair x, VecU32 random, VecU16& unusual) {
  PairBits y = bits(x);
  if constexpr (kDtype == Dtype::kUE6M10) {
    flag_bits_from(unusual, y, kUe6m10Limit);  // negative values and NaN included
    y = {ue6m10_y<kRounding>(x.even), ue6m10_y<kRounding>(x.odd)};
  }
  if constexpr (kRounding == Rounding::kStochastic) {
    if constexpr (kDtype == Dtype::kBF16 && kSign == Sign::kNonNegative) {
      flag_bits_from(unusual, y, kBf16LargestFinite);
    } else if constexpr (kDtype == Dtype::kBF16) {
      flag_magnitude_from(unusual, upper_halves(y), kBf16LargestFinite);
    }
    return stochastic(y, random);
  } else {
    const VecU16 upper = upper_halves(y);
    if constexpr (kDtype == Dtype::kBF16 && kNaN == NaN::kReport) {
      flag_magnitude_from(unusual, upper, kBf16Infinity);
    }
    return nearest(upper, lower_halves(y)).rounded;
  }
}

// ---- the split master, docs/numerics.md §6

struct SplitCodes {
  VecU16 weight, remainder;
};

HWY_INLINE Pair join(VecU16 weight, VecU16 remainder) {
  const auto borrow = hn::ShiftRight<15>(hn::BitCast(i16, remainder));  // −1 for a negative one
  const VecU16 upper = hn::Add(weight, hn::BitCast(u16, borrow));
  const VecU32 remainder_words = hn::BitCast(u32, remainder);
  const VecU16 even = merge_halves(hn::ShiftLeft<16>(hn::BitCast(u32, upper)), remainder);
  const VecU16 odd = merge_halves(upper, hn::ShiftRight<16>(remainder_words));
  return {hn::BitCast(f32, even), hn::BitCast(f32, odd)};
}

// Reports NaN (and Inf). `tie` is −1 in the lanes that lose an ulp.
HWY_INLINE SplitCodes split(Pair x, VecU16& unusual, hn::Vec<TagI16>& tie) {
  const VecU16 upper = upper_halves(bits(x)), lower = lower_halves(bits(x));
  flag_magnitude_from(unusual, upper, kBf16Infinity);
  const Nearest weight = nearest(upper, lower);
  // As signed numbers, carry is larger than lower in a tie down alone: 0x7FFF instead of 0x8000,
  // which is the remainder that loses an ulp.
  const auto signed_lower = hn::BitCast(i16, lower);
  const auto remainder = hn::Max(signed_lower, hn::BitCast(i16, weight.carry));
  tie = hn::VecFromMask(i16, hn::Ne(remainder, signed_lower));
  return {weight.rounded, hn::BitCast(u16, remainder)};
}

}  // namespace halfstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR

#endif  // include guard, once per target
