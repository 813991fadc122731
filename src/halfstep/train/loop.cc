#include "halfstep/train/loop.h"

#include <ATen/ATen.h>
#include <fmt/core.h>

#include <chrono>
#include <cmath>

#include "halfstep/core/error.h"
#include "halfstep/optim/memory_counter.h"
#include "halfstep/train/checkpoints.h"
#include "halfstep/train/evaluate.h"
#include "halfstep/train/report.h"
#include "halfstep/train/stop_request.h"

namespace halfstep::train {
namespace {

using Clock = std::chrono::steady_clock;

// Back-propagates the sums of token losses of all micro-batches; what they are divided by is known
// at the end and becomes part of the optimizer's gradient scale.
void accumulate_gradients(Trainer& t, StepRecord& record) {
  auto& memory = optim::MemoryCounter::instance();
  const int64_t batch = t.options.micro_batch_size;
  t.gradients->begin_step(t.optimizer->updates());
  for (int64_t k = 0; k < t.options.num_micro_batches(); ++k) {
    const auto micro_batch = t.training->read(t.progress.consumed_samples + k * batch, batch);
    t.gradients->begin_micro_batch(k);
    memory.begin_phase(optim::Phase::kForward);
    const at::Tensor loss = t.model->loss_sum(to_tensors(micro_batch));
    memory.begin_phase(optim::Phase::kBackward);
    loss.backward();
    record.loss_sum += loss.item<double>();
    record.targets += micro_batch.num_targets;
    record.tokens += batch * micro_batch.seq_length;
  }
  t.gradients->finish_step();
}

[[noreturn]] void throw_diverged(const Trainer& t, const optim::StepResult& result) {
  throw Error(ExitCode::kDiverged,
              fmt::format("{} steps in a row had non-finite gradients, the last one (iteration {}) "
                          "first in '{}'",
                          t.progress.consecutive_skipped_steps, t.progress.iteration,
                          t.arenas->parameters()[result.bad_parameter].name),
              "lower --lr, lengthen the warm-up, or look at the data; --max-skipped-steps sets the "
              "limit");
}

void count_step(Trainer& t, const StepRecord& record) {
  ++t.progress.iteration;
  t.progress.consumed_samples += t.options.global_batch_size;
  t.progress.consumed_tokens += record.tokens;
  if (record.skipped) {
    ++t.progress.skipped_steps;
    ++t.progress.consecutive_skipped_steps;
  } else {
    t.progress.consecutive_skipped_steps = 0;
  }
}

bool every(int64_t interval, int64_t iteration) {
  return interval > 0 && iteration % interval == 0;
}

void run_evaluation(Trainer& t, RunLog& log) {
  optim::MemoryCounter::instance().begin_phase(optim::Phase::kForward);
  const Evaluation result = evaluate(*t.model, *t.validation, t.options.micro_batch_size,
                                     t.options.eval_iters * t.options.global_batch_size);
  std::string text = fmt::format("eval at step {} | loss {:.4f} | perplexity {:.4g}",
                                 t.progress.iteration, result.loss(), std::exp(result.loss()));
  if (t.tokens.token_is_byte) {
    text += fmt::format(" | {:.4f} bits per byte", result.loss() / std::log(2.0));
  }
  log.line(text);
  log.event({{"event", "eval"},
             {"step", t.progress.iteration},
             {"loss", result.loss()},
             {"tokens", result.tokens},
             {"sequences", result.sequences}});
}

}  // namespace

StepRecord train_step(Trainer& t, bool health) {
  StepRecord record;
  record.lr = t.schedule.at(t.progress.iteration);
  accumulate_gradients(t, record);
  if (record.targets == 0) {
    throw InputError(fmt::format("no target of step {} has a loss", t.progress.iteration + 1),
                     "drop --eod-mask-loss or raise --global-batch-size");
  }
  optim::MemoryCounter::instance().begin_phase(optim::Phase::kStep);
  const optim::StepResult result = t.optimizer->step(
      *t.gradients,
      {.lr = record.lr, .loss_weight = static_cast<double>(record.targets), .health = health});
  record.grad_norm = result.grad_norm;
  record.clip_coefficient = result.clip_coefficient;
  record.optimizer_ms = result.milliseconds;
  record.saturated = result.saturated;
  record.skipped = result.skipped;
  record.health = result.health;
  count_step(t, record);
  record.iteration = t.progress.iteration;
  if (t.progress.consecutive_skipped_steps >= t.options.max_skipped_steps) {
    throw_diverged(t, result);
  }
  if (record.skipped) {
    record.bad_parameter = t.arenas->parameters()[result.bad_parameter].name;
  }
  return record;
}

void run_loop(Trainer& t, RunLog& log) {
  const Options& options = t.options;
  const auto started = Clock::now();
  const auto out_of_time = [&] {
    const double minutes = std::chrono::duration<double>(Clock::now() - started).count() / 60;
    return options.exit_duration_in_mins > 0 && minutes >= options.exit_duration_in_mins;
  };
  StopRequest stop;
  Interval interval(run_facts(t));
  // A resumed run that has nothing left to do saves and evaluates nothing.
  int64_t saved_at = t.progress.iteration, evaluated_at = t.progress.iteration;
  const auto save = [&] {
    save_run(t, log);
    saved_at = t.progress.iteration;
  };
  const auto evaluate_now = [&] {
    run_evaluation(t, log);
    evaluated_at = t.progress.iteration;
  };

  bool stopping = false;
  if (t.progress.iteration >= options.train_iters) {
    log.line(fmt::format("nothing to do: --train-iters {} are done", options.train_iters));
  }
  while (t.progress.iteration < options.train_iters && !stopping) {
    const int64_t next = t.progress.iteration + 1;
    const bool log_now = every(options.log_interval, next) || next == options.train_iters;
    const StepRecord record = train_step(t, log_now);
    interval.add(record);
    if (record.skipped) report_skipped_step(record, log);
    if (log_now) report_interval(t, interval, log);
    log.progress(next, options.train_iters, "");

    stopping = stop.signal_name() || out_of_time();
    interval.pause();
    if (t.validation && every(options.eval_interval, next) && !stopping) evaluate_now();
    if (every(options.save_interval, next)) save();
    interval.resume();
  }

  const bool finished = t.progress.iteration >= options.train_iters;
  if (finished && t.validation && evaluated_at != t.progress.iteration) evaluate_now();
  if (!options.save.empty() && saved_at != t.progress.iteration) save();
  report_end(t, log, finished);
  if (!finished && stop.signal_name()) throw_interrupted(t, stop.signal_name());
}

}  // namespace halfstep::train
