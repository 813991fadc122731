#include "halfstep/data/permutation.h"

#include <algorithm>
#include <bit>

#include "halfstep/core/error.h"
#include "halfstep/core/philox.h"

namespace halfstep::data {
namespace {

// Four rounds are the least that make a Feistel network look random; halves of a few bits need
// more, because each round then mixes in only that many bits.
constexpr int kRounds = 8;
// Networks of fewer bits reach too few of the permutations of a small n.
constexpr int kMinHalfBits = 4;

}  // namespace

int64_t permute_index(int64_t index, int64_t n, uint64_t seed, int64_t epoch) {
  check(n >= 1 && index >= 0 && index < n, "permute_index: index outside [0, n)");
  const int bits = std::bit_width(static_cast<uint64_t>(n - 1));
  const int half_bits = std::max(kMinHalfBits, (bits + 1) / 2);
  const uint64_t half_mask = (uint64_t{1} << half_bits) - 1;
  const PhiloxKey key{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  const auto epoch_low = static_cast<uint32_t>(epoch);
  const auto epoch_high = static_cast<uint32_t>(static_cast<uint64_t>(epoch) >> 32);

  uint64_t value = static_cast<uint64_t>(index);
  do {
    uint64_t left = value >> half_bits, right = value & half_mask;
    for (uint32_t round = 0; round < kRounds; ++round) {
      const auto noise =
          philox4x32_10({static_cast<uint32_t>(right), round, epoch_low, epoch_high}, key);
      const uint64_t mixed = left ^ (noise[0] & half_mask);
      left = right;
      right = mixed;
    }
    value = left << half_bits | right;
  } while (value >= static_cast<uint64_t>(n));
  return static_cast<int64_t>(value);
}

}  // namespace halfstep::data
