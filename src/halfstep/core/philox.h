// Philox4x32-10 as a pure function, and the address of every random bit that halfstep uses
// (docs/numerics.md §5). There is no generator state: the same (seed, parameter, element, step,
// purpose) gives the same bits in any thread, vector width, shard, process and after any resume.
#pragma once

#include <array>
#include <cstdint>

namespace halfstep {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

constexpr PhiloxCounter philox4x32_10(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
  }
  return counter;
}

enum class NoisePurpose : uint32_t {
  kExpAvg = 0,
  kExpAvgSq = 1,
  kWeight = 2,
  kGradient = 3,
  kInit = 5,
};

// Everything of the address but the element.
struct NoiseStream {
  uint64_t seed = 0;
  uint64_t name_hash = 0;  // fnv1a of the parameter's Hugging Face name
  int64_t step = 0;        // t of the parameter, or 0 for kInit
  NoisePurpose purpose = NoisePurpose::kExpAvg;
  uint32_t micro_step = 0;  // only for kGradient: index in the global batch, < 65536

  constexpr PhiloxKey key() const {
    return {static_cast<uint32_t>(seed),
            static_cast<uint32_t>(seed >> 32) ^ static_cast<uint32_t>(name_hash >> 32)};
  }
  // The counter of a block of 8 elements: block = element / 8 < 2^48.
  constexpr PhiloxCounter counter(uint64_t block) const {
    return {static_cast<uint32_t>(block),
            static_cast<uint32_t>(block >> 32 & 0xFFFF) | micro_step << 16,
            static_cast<uint32_t>(name_hash),
            (static_cast<uint32_t>(step) & 0x0FFFFFFFu) | static_cast<uint32_t>(purpose) << 28};
  }
  // The 16 random bits of an element (flat row-major index in the whole, unsharded parameter).
  constexpr uint32_t bits16(int64_t element) const {
    const auto words = philox4x32_10(counter(static_cast<uint64_t>(element) / 8), key());
    const uint32_t word = words[static_cast<uint64_t>(element) % 8 / 2];
    return element % 2 ? word >> 16 : word & 0xFFFFu;
  }
};

}  // namespace halfstep
