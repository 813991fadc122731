// Inputs of the conformance tests: a value is a function of (seed, array, element), so a tensor cut
// in any way holds the same values. Three classes of data, because each hides faults that another
// shows: specials send vectors to the reference, so dense ones leave the fast path untested.
#pragma once

#include <cstdint>
#include <string_view>

#include "halfstep/core/dtype.h"

namespace halfstep::conformance {

enum class DataClass {
  kOrdinary,  // nothing that a fast path may not handle itself
  kRare,      // one special value in 10^4
  kDense,     // half of the values are special, the others random bits
};
inline constexpr DataClass kDataClasses[] = {DataClass::kOrdinary, DataClass::kRare,
                                             DataClass::kDense};

constexpr std::string_view name_of(DataClass c) {
  return c == DataClass::kOrdinary ? "ordinary" : c == DataClass::kRare ? "rare" : "dense";
}

// What an array holds, which decides the range of its ordinary values.
enum class Role { kWeight, kRemainder, kGrad, kExpAvg, kExpAvgSq };

constexpr uint64_t mixed(uint64_t x) {  // splitmix64's finalizer
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

// The bits of a value, in the low dtype_bytes of the result.
uint32_t test_value(DataClass data, Role role, Dtype dtype, uint64_t seed, int64_t element);

}  // namespace halfstep::conformance
