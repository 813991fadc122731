// How a run resumes: which checkpoint it takes, what it checks, what it reads of it and what it tells
// its user. Saving is saver.h's, the files themselves are checkpoint's.
#pragma once

#include <optional>
#include <string>

#include "halfstep/checkpoint/reader.h"
#include "halfstep/io/json.h"
#include "halfstep/train/trainer.h"

namespace halfstep::train {

// The checkpoint of --load; none without --load, and none if the folder is that of --save and still
// empty (the first start of a run that resumes itself). Throws UsageError if --save holds
// checkpoints of another run, InputError if there is nothing to load.
std::optional<checkpoint::CheckpointReader> open_checkpoint(const Options& options, RunLog& log);

// Refuses a checkpoint of another model (InputError) or other data (UsageError; with
// --allow-data-change the new ones are read from their beginning).
void check_same_model(const checkpoint::TrainState& state, const arch::ModelConfig& config);
void check_same_data(const checkpoint::TrainState& state, const Options& options,
                     const data::SampleSource& training);

// Weights, master and state into the arenas, update counts into the optimizer, and the progress;
// with --finetune weights and masters alone. Says which settings differ and which of them hold.
void restore(Trainer& trainer, const checkpoint::CheckpointReader& reader, RunLog& log);

// A free-form object of the manifest, for reading with checked types: its errors name file and key.
io::JsonObject state_object(const checkpoint::CheckpointReader& reader,
                            const nlohmann::json& object, const std::string& key);

// The model of a checkpoint as its manifest describes it.
arch::ModelConfig model_config_of(const checkpoint::CheckpointReader& reader);

}  // namespace halfstep::train
