// The front door of training: a whole run, from checked settings to the last checkpoint. Without
// torch in its interface.
#pragma once

#include <cstdio>
#include <nlohmann/json.hpp>

#include "halfstep/comm/communicator.h"
#include "halfstep/train/options.h"

namespace halfstep::train {

// Trains as `options` (from checked_options) say; people read rank 0's `terminal`. Called by each
// of `ranks`, with the same options. With --check-config, prints effective_configuration there and
// returns. Throws Error; kInterrupted after a signal
// (saved by then, with --save), kDiverged after too many non-finite steps in a row.
void run_training(const Options& options, comm::Communicator& ranks, std::FILE* terminal);

// The settings (those given, which are a --config file, and the defaults of the others), model,
// layout and dtypes that a run with these options would have, as one JSON document. Allocates
// nothing of the model.
nlohmann::ordered_json effective_configuration(const Options& options);

}  // namespace halfstep::train
