// What a run says about itself: before the first step, at each log line, and at the end. Text for
// people, and the same facts as objects of log.jsonl.
#pragma once

#include <string>

#include "halfstep/train/interval.h"
#include "halfstep/train/trainer.h"

namespace halfstep::train {

// Model, dtypes and bytes of each class (planned and measured), decay groups, rounding and why,
// compute, data.
void report_start(const Trainer& trainer, RunLog& log);

RunFacts run_facts(const Trainer& trainer);

// The line and the object of an interval, with norms per layer if asked for; starts the next one.
void report_interval(const Trainer& trainer, Interval& interval, RunLog& log);
// What the ranks have read, in rank order: that of the global batch. Called by all of them.
void report_samples(const Trainer& trainer, const StepRecord& step, RunLog& log);
void report_skipped_step(const StepRecord& step, RunLog& log);

// Memory by class and phase, planned and measured, and where the checkpoint is.
void report_end(const Trainer& trainer, RunLog& log, bool finished);

// Throw kInterrupted and kDiverged: the message says where the run stands.
[[noreturn]] void throw_interrupted(const Trainer& trainer, const char* signal);
[[noreturn]] void throw_diverged(const Trainer& trainer, const std::string& bad_parameter);
// kDiverged of a run that came to its end.
[[noreturn]] void throw_not_finite(const Trainer& trainer);

}  // namespace halfstep::train
