// The slices of a whole, unsharded layout: what one process saves and loads.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "halfstep/checkpoint/slice.h"
#include "halfstep/layout/layout.h"

namespace halfstep::checkpoint {

// Every stored class (gradients are not) of every parameter, in the layout's order. `base` returns
// the start of a class's array in an arena. The master is kMaster or kRemainder as the format says.
std::vector<MutableSlice> arena_slices(
    std::span<const arch::Parameter> parameters, const layout::Layout& layout,
    const std::function<void*(int64_t arena, layout::MemoryClass)>& base);

// The same memory, for a save.
std::vector<TensorSlice> as_const(std::span<const MutableSlice> slices);

}  // namespace halfstep::checkpoint
