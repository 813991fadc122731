// A keyed permutation of [0, n) as a pure function: the order of samples in an epoch without a
// table. A balanced Feistel network over the smallest even number of bits that holds n, walked
// along its cycle until it lands inside [0, n). Any n ≥ 1; the same on every machine; no state.
#pragma once

#include <cstdint>

namespace halfstep::data {

// Where `index` of [0, n) goes in this epoch. Expected work: fewer than 4 walks of 8 rounds (for
// n ≥ 64; below that up to 256 / n walks).
int64_t permute_index(int64_t index, int64_t n, uint64_t seed, int64_t epoch);

}  // namespace halfstep::data
