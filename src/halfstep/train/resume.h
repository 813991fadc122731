// A resumed run goes on with the settings of its checkpoint: what the command line and --config
// leave open is taken from the manifest, so that `train --load DIR --save DIR` is a whole command.
#pragma once

#include <cstdint>

#include "halfstep/train/options.h"

namespace halfstep::train {

// `options` (from parse_flags) with the model, data, batch, learning rate and optimizer of the
// checkpoint in --load; what was given wins. Unchanged without --load, or if nothing is there
// (set_up says whether that is an error). --num-threads is that of a run on as many ranks,
// `world_size`. Throws InputError for settings that nobody could have given.
Options resumed_options(Options options, int64_t world_size = 1);

}  // namespace halfstep::train
