// What a rank saves and loads (checkpoint/model_slices.h) with its place in the arenas.
#pragma once

#include <cstdint>
#include <vector>

#include "halfstep/checkpoint/slice.h"
#include "halfstep/optim/arenas.h"

namespace halfstep::train {

std::vector<checkpoint::TensorSlice> slices_to_save(const optim::Arenas& arenas, int64_t rank);
std::vector<checkpoint::MutableSlice> slices_to_load(const optim::Arenas& arenas, int64_t rank,
                                                     bool with_state);

// Bytes of what one rank saves, and of what all save together.
int64_t bytes_to_save(const optim::Arenas& arenas, int64_t rank);
int64_t bytes_to_save(const optim::Arenas& arenas);

}  // namespace halfstep::train
