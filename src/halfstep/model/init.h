// Initial weights (docs/numerics.md §5): a function of seed, parameter name and element alone, so
// the same on every machine and for every cut of the model.
#pragma once

#include <cstdint>

#include "halfstep/arch/parameter.h"
#include "halfstep/core/dtype.h"

namespace halfstep::model {

// Fills the whole parameter at `weight` (kF32 or kBF16): normal with init_std for matrices, 1 for
// norms, 0 for biases.
void initialise_parameter(const arch::Parameter& parameter, Dtype dtype, void* weight,
                          uint64_t seed);

}  // namespace halfstep::model
