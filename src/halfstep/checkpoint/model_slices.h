// Which slices of a model one rank stores, and which it loads: pure functions over the layout. All
// ranks together store each element of each tensor once, under its address in the unsharded
// parameter, so that any other layout can load it (docs/checkpoint-format.md).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "halfstep/arch/parameter.h"
#include "halfstep/checkpoint/slice.h"
#include "halfstep/layout/layout.h"

namespace halfstep::checkpoint {

// A slice and where the rank keeps it: elements [start, start + numel) of `parameter` in the arena
// of `memory_class`. Without elements (a tensor of the model of which this rank owns nothing) it
// still says that the tensor exists.
struct ModelSlice : Slice {
  int64_t parameter = 0;
  layout::MemoryClass memory_class = layout::MemoryClass::kWeight;
};

// The rank's shards of weights, masters or remainders, and states; no gradients. Of a weight each
// rank stores the part whose master it owns.
std::vector<ModelSlice> slices_to_save(const layout::Layout& layout,
                                       std::span<const arch::Parameter> parameters, int64_t rank);

// The same, but all of each weight, and exp_avg and the like only `with_state`.
std::vector<ModelSlice> slices_to_load(const layout::Layout& layout,
                                       std::span<const arch::Parameter> parameters, int64_t rank,
                                       bool with_state);

// Bytes of the slices: what a shard with them takes beside its header.
int64_t total_bytes(std::span<const ModelSlice> slices);

}  // namespace halfstep::checkpoint
