// Refuses settings that are missing, contradict each other, or would have no effect, before
// anything is allocated: every failure is a UsageError (exit 2) that names the flag to add, drop or
// change.
#pragma once

#include "halfstep/arch/model_config.h"
#include "halfstep/train/options.h"

namespace halfstep::train {

// Returns the options with what follows from others filled in (the global batch size).
Options checked_options(Options options);

// More than one process (a launcher's WORLD_SIZE) is refused in this version.
void check_world_size(const char* world_size);

// The architecture that the dimension flags describe, for `vocab_size` tokens (ignored if
// --padded-vocab-size is given; that may not be smaller). Not for --load-hf.
arch::ModelConfig model_config_from(const Options& options, int64_t vocab_size);

}  // namespace halfstep::train
