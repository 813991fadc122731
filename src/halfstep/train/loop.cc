#include "halfstep/train/loop.h"

#include <ATen/ATen.h>
#include <fmt/core.h>

#include <chrono>
#include <cmath>

#include "halfstep/core/error.h"
#include "halfstep/dist/replica_check.h"
#include "halfstep/optim/memory_counter.h"
#include "halfstep/train/evaluate.h"
#include "halfstep/train/report.h"
#include "halfstep/train/saver.h"
#include "halfstep/train/stop_request.h"

namespace halfstep::train {
namespace {

using Clock = std::chrono::steady_clock;

// Back-propagates the sums of token losses of this rank's micro-batches and reduces their gradients
// over ranks; what they are divided by is known at the end and becomes part of the optimizer's
// gradient scale. The global batch is the same samples for any number of ranks: rank r has the r-th
// part of its micro-batches.
void accumulate_gradients(Trainer& t, StepRecord& record) {
  auto& memory = optim::MemoryCounter::instance();
  const int64_t batch = t.options.micro_batch_size;
  const int64_t count = t.options.num_micro_batches();
  t.gradients->begin_step(t.optimizer->updates());
  for (int64_t i = 0; i < count; ++i) {
    const int64_t k = t.ranks.rank() * count + i;
    const int64_t first = t.progress.consumed_samples + k * batch;
    const auto micro_batch = t.training->read(first, batch);
    for (int64_t j = 0; j < batch && t.options.log_samples; ++j) {
      record.samples.push_back(t.training->sample_at(first + j));
    }
    t.gradients->begin_micro_batch(k);
    memory.begin_phase(optim::Phase::kForward);
    const at::Tensor loss = t.model->loss_sum(to_tensors(micro_batch));
    if (i + 1 == count) t.reducer->begin_last_micro_batch();
    memory.begin_phase(optim::Phase::kBackward);
    loss.backward();
    record.loss_sum += loss.item<double>();
    record.targets += micro_batch.num_targets;
    record.tokens += batch * micro_batch.seq_length;
  }
  t.reducer->finish();
}

// Sums over ranks, in the one exchange of a step: after it all ranks know the same.
void exchange(Trainer& t, StepRecord& record) {
  double numbers[] = {record.loss_sum, static_cast<double>(record.targets),
                      static_cast<double>(record.tokens), record.stop.signal ? 1.0 : 0.0,
                      record.stop.out_of_time ? 1.0 : 0.0};
  t.optimizer->measure(*t.gradients, numbers);
  record.loss_sum = numbers[0];
  record.targets = static_cast<int64_t>(numbers[1]);
  record.tokens = static_cast<int64_t>(numbers[2]);
  record.stop = {.signal = numbers[3] > 0, .out_of_time = numbers[4] > 0};
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

// False, and said, if the loss is not finite.
bool run_evaluation(Trainer& t, RunLog& log) {
  optim::MemoryCounter::instance().begin_phase(optim::Phase::kForward);
  const Evaluation result = evaluate(*t.model, *t.validation, t.options.micro_batch_size,
                                     t.options.eval_iters * t.options.global_batch_size, t.ranks);
  const bool finite = std::isfinite(result.loss());
  std::string text = fmt::format("eval at step {} | loss {:.4f} | perplexity {:.4g}",
                                 t.progress.iteration, result.loss(), std::exp(result.loss()));
  if (t.tokens.token_is_byte) {
    text += fmt::format(" | {:.4f} bits per byte", result.loss() / std::log(2.0));
  }
  log.line(finite ? text
                  : fmt::format("warning: eval at step {} | the loss is not finite",
                                t.progress.iteration));
  log.event({{"event", "eval"},
             {"step", t.progress.iteration},
             {"loss", result.loss()},
             {"tokens", result.tokens},
             {"sequences", result.sequences}});
  return finite;
}

struct Ending {
  // After too many skipped steps in a row: whose gradient was the last one not finite.
  std::string bad_parameter;
  StopVotes stopped;
  bool finite = true;  // the loss of the last evaluation, and of the last step
};

// Up to --train-iters, a stop, or too many skipped steps in a row. Saves at intervals; the last
// save is the caller's.
Ending train_steps(Trainer& t, RunLog& log, const StopRequest& request, Saver& saver) {
  const Options& options = t.options;
  const auto started = Clock::now();
  const auto out_of_time = [&] {
    const double minutes = std::chrono::duration<double>(Clock::now() - started).count() / 60;
    return options.exit_duration_in_mins > 0 && minutes >= options.exit_duration_in_mins;
  };
  if (t.progress.iteration >= options.train_iters) {
    log.line(fmt::format("nothing to do: --train-iters {} are done", options.train_iters));
  }
  Interval interval(run_facts(t));
  Ending ending;
  while (t.progress.iteration < options.train_iters) {
    const int64_t next = t.progress.iteration + 1;
    const bool last = next == options.train_iters;
    const bool log_now = every(options.log_interval, next) || last;
    const StepRecord record = train_step(
        t, {.signal = request.signal_name() != nullptr, .out_of_time = out_of_time()}, log_now);
    interval.add(record);
    if (options.log_samples) report_samples(t, record, log);
    if (record.skipped) report_skipped_step(record, log);
    saver.poll();
    if (log_now) {
      if (options.log_per_layer) t.gather->wait_for_all();  // norms of weights
      report_interval(t, interval, log);
    }
    log.progress(next, options.train_iters, "");

    if (record.skipped && t.progress.consecutive_skipped_steps >= options.max_skipped_steps) {
      ending.bad_parameter = record.bad_parameter;
      return ending;
    }
    ending.stopped = record.stop;
    if (!last && (ending.stopped.signal || ending.stopped.out_of_time)) break;
    interval.pause();
    ending.finite = std::isfinite(record.loss_sum);
    if (t.validation && (every(options.eval_interval, next) || last)) {
      ending.finite = run_evaluation(t, log) && ending.finite;
    }
    if (every(options.save_interval, next) && !last) saver.save();
    if (every(options.check_replicas, next)) {
      t.gather->wait_for_all();
      log.event({{"event", "replicas"},
                 {"step", next},
                 {"checksum", fmt::format("{:016x}", dist::check_replicas(*t.arenas, t.ranks))}});
    }
    interval.resume();
  }
  t.gather->wait_for_all();
  return ending;
}

}  // namespace

StepRecord train_step(Trainer& t, StopVotes votes, bool health) {
  StepRecord record;
  record.stop = votes;
  record.lr = t.schedule.at(t.progress.iteration);
  accumulate_gradients(t, record);
  optim::MemoryCounter::instance().begin_phase(optim::Phase::kStep);
  exchange(t, record);
  if (record.targets == 0) {
    throw InputError(fmt::format("no target of step {} has a loss", t.progress.iteration + 1),
                     "drop --eod-mask-loss or raise --global-batch-size");
  }
  t.updating = true;
  const optim::StepResult result = t.optimizer->update(
      {.lr = record.lr, .loss_weight = static_cast<double>(record.targets), .health = health});
  if (!result.skipped) t.gather->start();
  record.reduce_wait_ms = t.reducer->wait_ms();
  record.reduce_sum_ms = t.reducer->sum_ms();
  record.gather_wait_ms = t.gather->take_wait_ms();
  record.traffic = t.ranks.traffic();
  record.grad_norm = result.grad_norm;
  record.clip_coefficient = result.clip_coefficient;
  record.optimizer_ms = result.milliseconds;
  record.saturated = result.saturated;
  record.skipped = result.skipped;
  record.health = result.health;
  count_step(t, record);
  t.updating = false;
  record.iteration = t.progress.iteration;
  if (record.skipped) {
    record.bad_parameter = t.arenas->parameters()[result.bad_parameter].name;
  }
  return record;
}

void run_loop(Trainer& t, RunLog& log) {
  StopRequest request;
  Saver saver(t, log);
  Ending ending;
  try {
    ending = train_steps(t, log, request, saver);
  } catch (...) {
    // A batch that cannot be read, memory that ends, an evaluation that fails: what has been
    // trained up to then is whole, unless it was the update itself, and the copy that is being
    // saved in the background always is. Several ranks save together or not at all, and the others
    // do not know of this.
    if (t.ranks.size() == 1) t.updating ? saver.try_finish() : saver.try_save_last();
    throw;
  }
  const bool diverged = !ending.bad_parameter.empty();
  const bool finished = !diverged && t.progress.iteration >= t.options.train_iters;
  if (diverged) {
    saver.try_save_last();
  } else {
    saver.save_last();
  }
  report_end(t, log, finished);
  if (diverged) throw_diverged(t, ending.bad_parameter);
  // A row of skipped steps that the end cuts off is no better than one that --max-skipped-steps
  // does.
  if (finished && (!ending.finite || t.progress.consecutive_skipped_steps > 1)) {
    throw_not_finite(t);
  }
  if (!finished && ending.stopped.signal) {
    throw_interrupted(t,
                      request.signal_name() ? request.signal_name() : "a signal to another rank");
  }
}

}  // namespace halfstep::train
