// BF16, the upper half of an FP32, encoded and decoded by integer operations alone, so subnormals
// survive whatever the floating-point environment is (docs/numerics.md §3, §4). These functions
// define the format: the reference kernels call them, and the tests compare SIMD code with them.
//
// Policy of both encodings: NaN gives a quiet NaN, ±Inf stays, the sign is kept, and a value that
// bf16 holds exactly never changes.
#pragma once

#include <bit>
#include <cstdint>

namespace halfstep {

inline constexpr uint16_t kBf16QuietBit = 0x0040;
inline constexpr uint16_t kBf16Inf = 0x7F80;  // without the sign

constexpr bool is_nan_bits(uint32_t f32_bits) { return (f32_bits & 0x7FFFFFFF) > 0x7F800000; }

constexpr float bf16_decode(uint16_t code) {
  return std::bit_cast<float>(static_cast<uint32_t>(code) << 16);
}

// NaN has to be tested for: adding to the bits of 0x7FFF8001 would wrap it to −0.
constexpr uint16_t bf16_quiet_nan(uint32_t f32_bits) {
  return static_cast<uint16_t>(f32_bits >> 16 | kBf16QuietBit);
}

// Round to nearest, ties to even. FLT_MAX gives Inf, as IEEE says.
constexpr uint16_t bf16_nearest(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (is_nan_bits(bits)) return bf16_quiet_nan(bits);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// Stochastic rounding with the random number r < 65536: up with the probability of the discarded
// fraction. Where nearest gives Inf the plain sum decides; any other finite value that would carry
// into Inf gives the largest finite one, so the noise never makes an Inf that nearest does not.
constexpr uint16_t bf16_stochastic(float x, uint32_t r) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (is_nan_bits(bits)) return bf16_quiet_nan(bits);
  const uint16_t code = static_cast<uint16_t>((bits + r) >> 16);
  const bool carried_into_inf = (code & 0x7FFF) == kBf16Inf && (bits & 0x7FFFFFFF) < 0x7F7F8000;
  return carried_into_inf ? code - 1 : code;
}

// Nearest of an FP64 value, rounded once; for magnitudes that are 0 or normal in FP32.
constexpr uint16_t bf16_nearest(double x) {
  constexpr int kDropped = 52 - 7;
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  const uint64_t half = (uint64_t{1} << (kDropped - 1)) - 1 + (bits >> kDropped & 1);
  const uint64_t rounded = (bits + half) >> kDropped << kDropped;
  // Exact: `rounded` has 8 significant bits.
  return bf16_nearest(static_cast<float>(std::bit_cast<double>(rounded)));
}

}  // namespace halfstep
