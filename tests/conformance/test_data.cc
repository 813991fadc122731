#include "test_data.h"

#include <iterator>

namespace halfstep::conformance {
namespace {

// FP32 patterns at which some rule changes. Their upper halves serve as BF16 codes.
constexpr uint32_t kSpecials[] = {
    0x00000000, 0x80000000,                          // zeros
    0x00000001, 0x807FFFFF, 0x00400000, 0x00010000,  // subnormals, also as BF16
    0x00800000, 0x80800000, 0x00800001,              // least normal
    0x7F800000, 0xFF800000,                          // infinities
    0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001,  // NaN: quiet, signalling
    0x7FFFFFFF, 0xFFFFFFFF, 0x7FFF8001, 0xFFFF8000,  // NaN that would wrap when rounded
    0x7F7FFFFF, 0xFF7FFFFF, 0x7F7F8000, 0x7F7F7FFF, 0xFF7F0001, 0x7F7F0000,  // the upper end
    0x3F808000, 0x3F818000, 0x3F807FFF, 0x3F808001,  // ties and their neighbours
    0x5F800000, 0xDF800000, 0x20000000,              // squares overflow or vanish
    0x44FFC000, 0x44FFD000, 0x44FFDFFF, 0x44FFE000, 0x44FFF000, 0x45000000,  // 2046 … 2048
    0x44FF0000, 0x44FEFFFF,                                                  // 2040 and below
    0x25800000, 0x257FFFFF, 0x25000000, 0x20800000, 0x207FFFFF, 0x20000001,  // 2^-52, 2^-62
};
constexpr uint32_t kUe6m10Specials[] = {0, 1, 2, 1023, 1024, 1025, 0xFFFF, 0xFFFE, 0xFFFD, 0xFC00};

struct Exponents {
  uint32_t least, count;
};
constexpr Exponents ordinary_exponents(Role role) {
  switch (role) {
    case Role::kWeight:
      return {115, 12};
    case Role::kGrad:
      return {95, 30};
    case Role::kExpAvg:
      return {92, 32};
    default:
      return {70, 50};  // exp_avg_sq: also under ue6m10's full precision
  }
}

uint32_t ordinary(Role role, Dtype dtype, uint64_t random) {
  const uint32_t low = static_cast<uint32_t>(random);
  if (role == Role::kRemainder) return low & 0xFFFF;
  if (dtype == Dtype::kUE6M10) return low % 0xF000;
  if (role == Role::kExpAvgSq && low % 16 == 0) return 0;
  const Exponents exponents = ordinary_exponents(role);
  const uint32_t exponent = exponents.least + static_cast<uint32_t>(random >> 32) % exponents.count;
  const uint32_t sign = role == Role::kExpAvgSq ? 0 : low & 0x80000000u;
  const uint32_t bits = sign | exponent << 23 | (low & 0x7FFFFF);
  return dtype == Dtype::kF32 ? bits : bits >> 16;
}

uint32_t special(Role role, Dtype dtype, uint64_t random) {
  if (role == Role::kRemainder) {
    constexpr uint32_t kRemainders[] = {0, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 1};
    return kRemainders[random % std::size(kRemainders)];
  }
  if (dtype == Dtype::kUE6M10) return kUe6m10Specials[random % std::size(kUe6m10Specials)];
  const uint32_t bits = kSpecials[random % std::size(kSpecials)];
  return dtype == Dtype::kF32 ? bits : bits >> 16;
}

}  // namespace

uint32_t test_value(DataClass data, Role role, Dtype dtype, uint64_t seed, int64_t element) {
  const uint64_t address = static_cast<uint64_t>(element) * 8 + static_cast<uint64_t>(role);
  const uint64_t random = mixed(mixed(seed) ^ address), choice = mixed(random);
  switch (data) {
    case DataClass::kOrdinary:
      break;
    case DataClass::kRare:
      if (choice % 10'000 == 0) return special(role, dtype, random);
      break;
    case DataClass::kDense:
      if (choice % 2 == 0) return special(role, dtype, random);
      return dtype == Dtype::kF32 ? static_cast<uint32_t>(random)
                                  : static_cast<uint32_t>(random) & 0xFFFF;
  }
  return ordinary(role, dtype, random);
}

}  // namespace halfstep::conformance
