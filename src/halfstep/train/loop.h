// The training loop: micro-batches, step, log, evaluation, checkpoints, stopping.
#pragma once

#include "halfstep/train/interval.h"
#include "halfstep/train/options.h"
#include "halfstep/train/trainer.h"

namespace halfstep::train {

// One global batch and one step of the optimizer; advances `trainer.progress`, also over a skipped
// step. With `health`, the step's rounding is sampled. `votes` are this rank's, the record has
// those of all. Called by every rank.
StepRecord train_step(Trainer& trainer, StopVotes votes, bool health);

// Trains up to --train-iters, or until a signal or the time limit stops it at a step boundary.
// Saves as asked, and whatever ends the run, saves what has been trained (with --save). Throws
// Error: kDiverged after too many non-finite steps in a row or with a loss that is not finite at
// the end, kInterrupted after a signal, InputError if the last save failed; one on the way that
// fails is only said. With several ranks nothing is saved after an error of one, nor after a
// CommError: the last checkpoint stands.
void run_loop(Trainer& trainer, RunLog& log);

}  // namespace halfstep::train
