// TrainState as the keys of a manifest, and back. Used by manifest.cc and `halfstep inspect`.
#pragma once

#include <nlohmann/json.hpp>

#include "halfstep/checkpoint/train_state.h"
#include "halfstep/io/json.h"

namespace halfstep::checkpoint {

nlohmann::ordered_json train_state_to_json(const TrainState& state);
// Throws InputError naming the key for a missing or impossible value.
TrainState train_state_from_json(const io::JsonObject& object);

}  // namespace halfstep::checkpoint
