// What no model comes near, so that a typing error is told at once instead of after minutes.
#pragma once

#include <cstdint>

namespace halfstep::arch {

// The list of the parameters of many more layers would take minutes to write down.
inline constexpr int64_t kMaxLayers = 1 << 16;

}  // namespace halfstep::arch
