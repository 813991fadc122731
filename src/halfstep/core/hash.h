// FNV-1a, 64 bit: the hash of a parameter's name in the address of its rounding noise
// (docs/numerics.md §5), and of anything else that has to be the same on every machine.
#pragma once

#include <cstdint>
#include <string_view>

namespace halfstep {

constexpr uint64_t fnv1a(std::string_view text, uint64_t state = 0xcbf29ce484222325ull) {
  for (char c : text) state = (state ^ static_cast<uint8_t>(c)) * 0x100000001b3ull;
  return state;
}

}  // namespace halfstep
