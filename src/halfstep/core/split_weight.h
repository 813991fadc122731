// An FP32 master weight stored as its BF16 rounding and a signed 16-bit remainder
// (docs/numerics.md §6). The weight always equals bf16_nearest(x), so it agrees with every other
// writer of BF16 weights, *provided that whoever writes a weight also writes its remainder*, 0 if
// unknown. join(split(x)) is x, but for a tie whose upper half is even (2^-17 of all values): 65
// 537 values round to each even weight, so one of them has to lose an ulp.
#pragma once

#include <bit>
#include <cstdint>

#include "halfstep/core/bf16.h"

namespace halfstep {

struct SplitWeight {
  uint16_t weight;
  int16_t remainder;
  bool lost_ulp;  // x was such a tie
};

constexpr SplitWeight split_f32(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (is_nan_bits(bits)) return {bf16_quiet_nan(bits), 0, false};
  const uint32_t hi = bits >> 16, lo = bits & 0xFFFF;
  const uint32_t sticky = lo | (hi & 1);  // above 0x8000: rounds up; equal: a tie to even, down
  const bool tie = sticky == 0x8000;
  return {static_cast<uint16_t>(hi + (sticky > 0x8000)),
          static_cast<int16_t>(static_cast<uint16_t>(lo - tie)), tie};
}

constexpr float join_f32(uint16_t weight, int16_t remainder) {
  return std::bit_cast<float>((static_cast<uint32_t>(weight) << 16) +
                              static_cast<uint32_t>(int32_t{remainder}));
}

}  // namespace halfstep
