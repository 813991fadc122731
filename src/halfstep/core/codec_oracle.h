// What the codecs should give, computed another way: by comparing distances to both neighbours in
// FP64, where every value here is exact. Test code, shared with the exhaustive nightly program.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "halfstep/core/bf16.h"
#include "halfstep/core/ue6m10.h"

namespace halfstep::oracle {

// BF16 code of an FP32 pattern. The neighbour above the largest finite value is 2^128.
inline uint16_t bf16_nearest(uint32_t bits) {
  const float x = std::bit_cast<float>(bits);
  const uint32_t hi = bits >> 16;
  if (std::isnan(x)) return static_cast<uint16_t>(hi | kBf16QuietBit);
  if (std::isinf(x)) return static_cast<uint16_t>(hi);
  const auto magnitude = [](uint32_t code) {
    return (code & 0x7FFF) == kBf16Inf
               ? 0x1p128
               : std::fabs(double{bf16_decode(static_cast<uint16_t>(code))});
  };
  const double down = std::fabs(double{x}) - magnitude(hi);
  const double up = magnitude(hi + 1) - std::fabs(double{x});
  const bool round_up = up < down || (up == down && hi % 2 == 1);
  return static_cast<uint16_t>(hi + round_up);
}

// ue6m10 code of a finite x ≥ 0, given the largest code whose value is ≤ x.
inline uint16_t ue6m10_nearest(float x, uint16_t below) {
  if (below == kUe6m10Max) return kUe6m10Max;
  const double down = double{x} - double{ue6m10_decode(below)};
  const double up = double{ue6m10_decode(static_cast<uint16_t>(below + 1))} - double{x};
  return static_cast<uint16_t>(below + (up < down || (up == down && below % 2 == 1)));
}

}  // namespace halfstep::oracle
