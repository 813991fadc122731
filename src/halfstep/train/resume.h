// A resumed run goes on with the settings of its checkpoint: what the command line and --config
// leave open is taken from the manifest, so that `train --load DIR --save DIR` is a whole command,
// and where both say something it is told which one holds. Pure functions but for the manifest that
// is read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "halfstep/checkpoint/train_state.h"
#include "halfstep/train/options.h"

namespace halfstep::train {

// `options` (from parse_flags) with the model, data, batch, learning rate and optimizer of the
// checkpoint in --load. What was given wins, but for the seed, which is a part of the place in the
// data (not with --no-load-rng), and with --resume-hparams checkpoint for the learning rate and
// the optimizer: then the curve of the learning rate stays the same for any --train-iters. With
// --finetune only the model and its tokenizer are taken over. Unchanged without --load, or if
// nothing is there (set_up says whether that is an error). --num-threads is that of a run on as
// many ranks, `world_size`. Throws InputError for settings that nobody could have given.
Options resumed_options(Options options, int64_t world_size = 1);

// A setting of which the checkpoint and this run's command line or defaults say different things.
struct ChangedSetting {
  std::string flag;
  std::string checkpoint, here;  // the two values
  bool checkpoint_wins = false;
};
// `options` come from resumed_options.
std::vector<ChangedSetting> changed_settings(const checkpoint::TrainState& state,
                                             const Options& options);

// The same as a table, a line each, its head first; nothing without changes.
std::vector<std::string> settings_table(const std::vector<ChangedSetting>& changes);

}  // namespace halfstep::train
