// ue6m10, the unsigned 16-bit format of exp_avg_sq: 6 exponent bits, 10 mantissa bits
// (docs/numerics.md §3). Code 0 is 0; exponent field e = 0 is mantissa · 2^-62, e = 1…63 is
// (1 + mantissa/1024) · 2^(e−53); 0xFFFF is NaN. So 2^-62 … 2046, with all ten bits from 2^-52 up.
// Integer operations alone; these functions define the format, as in bf16.h.
//
// Policy of both encodings: NaN, ±Inf and negative values give NaN, −0 gives 0, finite values too
// large saturate at 2046, and a value that ue6m10 holds exactly never changes.
#pragma once

#include <bit>
#include <cstdint>

namespace halfstep {

inline constexpr uint16_t kUe6m10NaN = 0xFFFF;
inline constexpr uint16_t kUe6m10Max = 0xFFFE;
inline constexpr float kUe6m10FullPrecision = 0x1p-52f;  // least value with all ten mantissa bits

constexpr float ue6m10_decode(uint16_t code) {
  if (code == kUe6m10NaN) return std::bit_cast<float>(0x7FC00000u);
  if (code < 1024) return static_cast<float>(code) * 0x1p-62f;
  return std::bit_cast<float>((static_cast<uint32_t>(code) << 13) + (74u << 23));
}

namespace ue6m10_detail {

inline constexpr uint32_t kInfBits = 0x7F800000;
inline constexpr uint32_t kNaNCodeBits = std::bit_cast<uint32_t>(2047.0f);  // what 0xFFFF would be
inline constexpr uint32_t kFullPrecisionBits = std::bit_cast<uint32_t>(kUe6m10FullPrecision);

// The 24-bit significand of a normal FP32 and its exponent field.
constexpr uint32_t significand(uint32_t bits) { return (bits & 0x7FFFFF) | 0x800000; }

// −0 is 0; other negative values, Inf and NaN are no ue6m10.
constexpr bool has_no_code(uint32_t bits) { return bits >= kInfBits && bits != 0x80000000; }

// Value · 2^78 truncated to an integer, for bits < kFullPrecisionBits: 26 bits, of which the upper
// ten are the code and the lower 16 what rounding sees.
constexpr uint32_t scaled_below_full_precision(uint32_t bits) {
  const int shift = static_cast<int>(bits >> 23) - 72;  // at most 2
  if (shift >= 0) return significand(bits) << shift;
  return shift <= -24 ? 0 : significand(bits) >> -shift;
}

}  // namespace ue6m10_detail

// Whether a value counts as saturated: finite, with a nearest code beyond the largest finite one.
// 2046.5 itself is a tie that goes to the even code 0xFFFE.
constexpr bool ue6m10_saturates(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return bits < ue6m10_detail::kInfBits && bits > std::bit_cast<uint32_t>(2046.5f);
}

// Round to nearest, ties to even.
constexpr uint16_t ue6m10_nearest(float x) {
  using namespace ue6m10_detail;
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (has_no_code(bits)) return kUe6m10NaN;
  if (bits == 0x80000000) return 0;
  if (bits >= kNaNCodeBits) return kUe6m10Max;
  if (bits >= kFullPrecisionBits) {
    const uint32_t y = (bits << 3) - (74u << 26);  // modulo 2^32
    const uint32_t code = (y + 0x7FFF + (y >> 16 & 1)) >> 16;
    return static_cast<uint16_t>(code < kUe6m10Max ? code : kUe6m10Max);
  }
  // RNE of value · 2^62, with every bit of the significand: the scaled form of the stochastic
  // encoding has already dropped bits that decide ties here.
  const int shift = 88 - static_cast<int>(bits >> 23);  // at least 14
  if (shift > 24) return 0;
  const uint32_t m = significand(bits);
  return static_cast<uint16_t>((m + (1u << (shift - 1)) - 1 + (m >> shift & 1)) >> shift);
}

// Stochastic rounding with the random number r < 65536.
constexpr uint16_t ue6m10_stochastic(float x, uint32_t r) {
  using namespace ue6m10_detail;
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (has_no_code(bits)) return kUe6m10NaN;
  if (bits == 0x80000000) return 0;
  if (bits >= kNaNCodeBits) return kUe6m10Max;
  const uint32_t y =
      bits >= kFullPrecisionBits ? (bits << 3) - (74u << 26) : scaled_below_full_precision(bits);
  const uint32_t code = (y + r) >> 16;
  return static_cast<uint16_t>(code < kUe6m10Max ? code : kUe6m10Max);
}

}  // namespace halfstep
