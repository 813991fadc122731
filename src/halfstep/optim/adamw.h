// AdamW over what a rank owns of the arenas: global norm, clipping, the all-or-nothing skip of
// non-finite gradients, and one fused pass over memory (kernels::adamw_step). The arithmetic is
// docs/numerics.md §2–§8: clip factor and loss weight are one number of the step, gradients are
// never rewritten.
//
// A step has two halves, since what the gradients are divided by (the targets of all ranks) is
// known only after the ranks have talked: measure(), the one exchange of control numbers of a step,
// and update(), which is local. With several ranks, gradients are reduced before and weights
// gathered after (dist). All ranks call both, and get the same results.
//
// Complete state: the arenas (weights, masters, exp_avg, …) and one update count per parameter; no
// generator, no cache. With one rank a step allocates nothing. Its bits do not depend on the number
// of threads, on which kernels run or, from the same reduced gradients, on the number of ranks.
// Called by the training loop, once per global batch.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "halfstep/comm/communicator.h"
#include "halfstep/kernels/adamw.h"
#include "halfstep/kernels/rounding_policy.h"
#include "halfstep/optim/arenas.h"
#include "halfstep/optim/gradient_buffer.h"

namespace halfstep::optim {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;  // of decayed parameters (arch::Parameter::decayed)
  bool maximize = false;
  double clip_grad = 1.0;  // bound of the norm of the mean gradient; 0: no clipping
  std::optional<Rounding> state_rounding = std::nullopt;  // --state-rounding; empty is auto
  bool allow_stalling_rounding = false;
  uint64_t seed = 0;
};

// Which parameters are decayed: by dimension, never by name. Printed at start.
struct DecayGroup {
  std::string name;  // "decay", "no decay"
  double weight_decay = 0;
  std::vector<int64_t> parameters = {};
  int64_t num_elements = 0;
};

// How an arena is updated.
struct ArenaFormat {
  kernels::AdamwFormat format;
  kernels::RoundingChoice exp_avg, exp_avg_sq;  // with the reasons
};

struct StepOptions {
  double lr = 0;
  double loss_weight = 1;  // the gradient is a sum over this many target tokens; > 0
  bool health = false;     // sample the rounding health of this step
};

struct StepResult {
  double grad_norm = 0;         // of the mean gradient, before clipping; not finite if skipped
  double clip_coefficient = 1;  // 1: not clipped
  bool skipped = false;         // a gradient was not finite: nothing at all was changed
  int64_t bad_parameter = -1;   // the first one with a non-finite gradient
  int64_t saturated = 0;        // exp_avg_sq values of this rank above ue6m10's range
  double milliseconds = 0;  // of this rank's own work
  std::optional<kernels::RoundingHealth> health = std::nullopt;
};

// Update counts as a checkpoint keeps them: one number, and by name the parameters that differ.
struct UpdateCounts {
  int64_t common = 0;
  std::map<std::string, int64_t> exceptions = {};
  friend bool operator==(const UpdateCounts&, const UpdateCounts&) = default;
};

class AdamW {
 public:
  // Throws UsageError for options that are out of range, for a nearest rounding that stalls, and
  // for ue6m10 with eps < 1e-8. `arenas` and `ranks` must outlive this object; `ranks` are those
  // that share the arenas' layout, null where that is for one.
  AdamW(Arenas& arenas, const AdamWOptions& options, comm::Communicator* ranks = nullptr);

  // Σ g² of each parameter and whether it had a contribution on any rank, from the reduced
  // gradients in the arenas. `partial_sums` of the caller (losses, targets, votes) travel along and
  // become their sums over ranks.
  void measure(const GradientBuffer& gradients, std::span<double> partial_sums = {});
  // The step on what was measured. Parameters without a contribution are left alone: no decay, no
  // count.
  StepResult update(const StepOptions& options);
  // Both, on a single rank: also zeroes gradients without a contribution.
  StepResult step(GradientBuffer& gradients, const StepOptions& options);

  const std::vector<DecayGroup>& decay_groups() const { return groups_; }
  const std::vector<ArenaFormat>& formats() const { return formats_; }
  // What a user should know about these options before the first step; empty if nothing.
  const std::vector<std::string>& warnings() const { return warnings_; }
  const AdamWOptions& options() const { return options_; }

  // Σ g² of each parameter's gradient sum at the last step, over all ranks; 0 without a
  // contribution. Divide its root by the loss weight for a norm.
  std::span<const double> gradient_sum_squares() const { return sum_squares_; }

  // Updates that each parameter has had: t of the last one.
  std::span<const int64_t> updates() const { return updates_; }
  UpdateCounts update_counts() const;
  // Throws InputError if an exception names no parameter or a count is negative.
  void set_update_counts(const UpdateCounts& counts);

 private:
  // Sums the caller's numbers, sum_squares_ and contributed_ over ranks.
  void exchange(std::span<double> partial_sums);
  // The slices of this step, for the parameters that had a contribution.
  void fill_slices(double lr, double grad_scale);

  Arenas& arenas_;
  AdamWOptions options_;
  comm::Communicator* ranks_;
  std::vector<DecayGroup> groups_;
  std::vector<std::string> warnings_;
  std::vector<ArenaFormat> formats_;                      // by arena
  std::vector<std::vector<kernels::AdamwSlice>> slices_;  // by arena; capacity for all
  std::vector<kernels::AdamwSlice> templates_;  // by owned slice: everything but t and scalars
  std::vector<double> weight_decays_;           // by parameter, as all that follow
  std::vector<kernels::AdamwScalars> scalars_;
  std::vector<double> sum_squares_;
  std::vector<uint8_t> contributed_;  // on any rank
  std::vector<int64_t> updates_;
  double measure_ms_ = 0;
};

}  // namespace halfstep::optim
