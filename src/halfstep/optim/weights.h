// How weights and their master get their first values. Whoever writes a weight writes its master
// too (docs/numerics.md §6): both always go through here, or come bit for bit from a checkpoint.
//
// A drawn weight is the stored value w = RNE(std·z), and the master starts at exactly w: so all
// master modes start from the same weights, and a run differs from another only by its arithmetic.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "halfstep/optim/arenas.h"

namespace halfstep::optim {

// Draws all initial weights (docs/numerics.md §5): a function of (seed, name, element) alone. Norms
// are 1, biases 0.
void init_weights(Arenas& arenas, uint64_t seed);

// Sets a weight from `source`, a BF16 or FP32 CPU tensor of its shape. From FP32 a master keeps all
// bits (a split one loses an ulp in a tie) and the weight is RNE of it. From BF16 the master is the
// weight. Returns the number of values of this rank's shard that lost their last ulp in a split tie.
int64_t set_weight(Arenas& arenas, int64_t parameter, const at::Tensor& source);

// Sets all masters to their weights, for weights that were filled through Arenas::weights() or read
// without a master. The remainder of a split master becomes 0.
void reset_masters(Arenas& arenas);

// Σ w² of the stored weight, in FP64.
double weight_sum_squares(const Arenas& arenas, int64_t parameter);

}  // namespace halfstep::optim
