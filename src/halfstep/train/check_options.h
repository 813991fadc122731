// Refuses settings that are missing, contradict each other, or would have no effect, before
// anything is allocated: every failure is a UsageError (exit 2) that names the flag to add, drop or
// change.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "halfstep/arch/model_config.h"
#include "halfstep/train/options.h"

namespace halfstep::train {

// Returns the options with what follows from others filled in (the global batch size) and the
// number of ranks, `world_size`.
Options checked_options(Options options, int64_t world_size = 1);

// Names of the flags that were given and only mean something to several ranks, if there is one.
std::vector<std::string> idle_on_one_rank(const Options& options);

// Dimension flags that were given beside --load-hf or --load, `source`, must say what the model
// there says. --init-method-std says nothing about a model that is there.
void check_dimensions(const Options& options, const arch::ModelConfig& config,
                      std::string_view source);

// The architecture that the dimension flags describe, for `vocab_size` tokens (ignored if
// --padded-vocab-size is given; that may not be smaller). Not for --load-hf and --load.
arch::ModelConfig model_config_from(const Options& options, int64_t vocab_size);

}  // namespace halfstep::train
