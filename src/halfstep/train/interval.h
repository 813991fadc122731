// What is said about the steps since the last log line: collected step by step, then shown as one
// line and one object of log.jsonl.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "halfstep/comm/communicator.h"
#include "halfstep/kernels/adamw.h"

namespace halfstep::train {

// Why a run should stop at the next step boundary.
struct StopVotes {
  bool signal = false;
  bool out_of_time = false;
};

// One step of the loop, over all ranks.
struct StepRecord {
  int64_t iteration = 0;  // completed with this step
  double loss_sum = 0;    // nats, over the targets
  int64_t targets = 0;
  int64_t tokens = 0;
  double lr = 0;
  double grad_norm = 0;
  double clip_coefficient = 1;
  double optimizer_ms = 0;
  // Of this rank: waiting for gradients, adding them up, and waiting for weights of the step
  // before.
  double reduce_wait_ms = 0, reduce_sum_ms = 0, gather_wait_ms = 0;
  comm::Traffic traffic;  // to other ranks, since the run began
  int64_t saturated = 0;  // on this rank
  bool skipped = false;
  StopVotes stop;                // of any rank
  std::string bad_parameter;     // of a skipped step: the first with a non-finite gradient
  std::vector<int64_t> samples;  // those that this rank read, of samples_per_epoch()
  std::optional<kernels::RoundingHealth> health;
};

// Facts of the run that a line needs.
struct RunFacts {
  int64_t train_iters = 0;
  double flops_per_token = 0;  // forward and backward
  double peak_flops = 0;
  int64_t static_bytes = 0;  // weights, gradients, master, state, save copy
};

// What differs between ranks: the least and the most, and what is counted on each.
struct RankSpread {
  int64_t ranks = 1;
  double min_step_ms = 0, max_step_ms = 0;
  int64_t min_peak_bytes = 0, max_peak_bytes = 0;
  int64_t saturated = 0;
};

class Interval {
 public:
  explicit Interval(const RunFacts& facts) : facts_(facts) { restart(); }

  void add(const StepRecord& step);
  // Time that is no training (evaluation, saving) does not count.
  void pause();
  void resume();

  // Called by all ranks, before the others.
  RankSpread spread(comm::Communicator& ranks, int64_t peak_bytes) const;
  // The line, the object, and a fresh start.
  std::string line(const RankSpread& spread) const;
  nlohmann::ordered_json json(const RankSpread& spread) const;
  void restart();

  // Targets of the last step: what its gradient sums are divided by.
  int64_t last_targets() const { return last_.targets; }

 private:
  using Clock = std::chrono::steady_clock;
  double seconds() const;
  double loss() const { return loss_sum_ / static_cast<double>(targets_); }
  double tokens_per_second() const { return static_cast<double>(tokens_) / seconds(); }
  double utilisation() const;
  double eta_seconds() const;

  RunFacts facts_;
  StepRecord last_;
  Clock::time_point start_;
  Clock::time_point paused_at_;
  Clock::duration paused_{0};
  int64_t steps_ = 0, skipped_ = 0, targets_ = 0, tokens_ = 0, saturated_ = 0;
  double loss_sum_ = 0, optimizer_ms_ = 0;
  double reduce_wait_ms_ = 0, reduce_sum_ms_ = 0, gather_wait_ms_ = 0;
  comm::Traffic traffic_;  // up to the last restart
};

}  // namespace halfstep::train
