// The training loop: micro-batches, step, log, evaluation, checkpoints, stopping.
#pragma once

#include "halfstep/train/interval.h"
#include "halfstep/train/options.h"
#include "halfstep/train/trainer.h"

namespace halfstep::train {

// One global batch and one step of the optimizer; advances `trainer.progress`, also over a skipped
// step. With `health`, the step's rounding is sampled.
StepRecord train_step(Trainer& trainer, bool health);

// Trains up to --train-iters, or until a signal or the time limit stops it at a step boundary.
// Saves as asked. Throws Error: kDiverged after too many non-finite steps in a row, kInterrupted
// after a signal (saved by then, with --save).
void run_loop(Trainer& trainer, RunLog& log);

}  // namespace halfstep::train
