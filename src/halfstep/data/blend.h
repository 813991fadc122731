// Which source of a weighted blend a sample comes from, as a pure function of the sample's index.
//
// Sources are split off one after the other: source 0 takes its share of all samples, source 1 its
// share of the rest, and so on. A share r of the first i samples is floor(i · r) samples, so the
// answer needs no table and no history, and a longer run reads the same samples first. After any
// number of samples source k is less than max(1, k) samples away from its exact share.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace halfstep::data {

// The share of source k in what sources k, k + 1, … take together, in units of 2⁻⁶³ (the last one's
// is 2⁶³: everything). Weights must be positive and finite; they need not sum to 1.
std::vector<uint64_t> blend_ratios(std::span<const double> weights);

struct BlendLocation {
  int64_t source = 0;
  int64_t index = 0;  // how many samples of this source come before
};
BlendLocation blend_locate(std::span<const uint64_t> ratios, int64_t index);

}  // namespace halfstep::data
