#include "halfstep/optim/adamw.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "halfstep/core/error.h"
#include "halfstep/core/hash.h"
#include "halfstep/core/stopwatch.h"
#include "halfstep/kernels/vector_ops.h"

namespace halfstep::optim {
namespace {

using layout::MemoryClass;

void expect(bool condition, const char* flag, double got, const char* expected) {
  if (!condition) throw UsageError(fmt::format("{} is {}, expected {}", flag, got, expected));
}

void validate(const AdamWOptions& o) {
  expect(o.beta1 >= 0 && o.beta1 < 1, "--adam-beta1", o.beta1, "0 <= beta1 < 1");
  expect(o.beta2 >= 0 && o.beta2 < 1, "--adam-beta2", o.beta2, "0 <= beta2 < 1");
  expect(o.eps >= 0 && std::isfinite(o.eps), "--adam-eps", o.eps, "a finite number >= 0");
  expect(o.weight_decay >= 0 && std::isfinite(o.weight_decay), "--weight-decay", o.weight_decay,
         "a finite number >= 0");
  expect(o.clip_grad >= 0 && std::isfinite(o.clip_grad), "--clip-grad", o.clip_grad,
         "a finite number >= 0 (0 switches clipping off)");
}

void sum_over_ranks(kernels::RoundingHealth& health, comm::Communicator& ranks) {
  kernels::RoundingHealth::Flow* const flows[] = {&health.weight_up, &health.weight_down,
                                                  &health.exp_avg_sq_up, &health.exp_avg_sq_down};
  std::vector<double> numbers;
  for (const auto* flow : flows) {
    numbers.insert(numbers.end(), {flow->moved, flow->exact, static_cast<double>(flow->count)});
  }
  for (const int64_t n : {health.sampled, health.nonzero, health.small}) {
    numbers.push_back(static_cast<double>(n));
  }
  ranks.all_reduce_sum(numbers);
  auto next = numbers.begin();
  for (auto* flow : flows) {
    flow->moved = *next++;
    flow->exact = *next++;
    flow->count = static_cast<int64_t>(*next++);
  }
  for (int64_t* n : {&health.sampled, &health.nonzero, &health.small}) {
    *n = static_cast<int64_t>(*next++);
  }
}

ArenaFormat make_format(const layout::StorageFormat& stored, Dtype gradient,
                        const AdamWOptions& o) {
  ArenaFormat made;
  made.exp_avg = kernels::choose_state_rounding(stored.exp_avg, o.beta1, o.state_rounding,
                                                o.allow_stalling_rounding, "exp_avg");
  made.exp_avg_sq = kernels::choose_state_rounding(stored.exp_avg_sq, o.beta2, o.state_rounding,
                                                   o.allow_stalling_rounding, "exp_avg_sq");
  made.format = {.weight = stored.weight,
                 .master = stored.master,
                 .grad = gradient,
                 .exp_avg = stored.exp_avg,
                 .exp_avg_sq = stored.exp_avg_sq,
                 .exp_avg_rounding = made.exp_avg.rounding,
                 .exp_avg_sq_rounding = made.exp_avg_sq.rounding,
                 .amsgrad = stored.amsgrad};
  return made;
}

}  // namespace

AdamW::AdamW(Arenas& arenas, const AdamWOptions& options, comm::Communicator* ranks)
    : arenas_(arenas), options_(options), ranks_(ranks) {
  validate(options);
  check((ranks == nullptr ? 1 : ranks->size()) == arenas.layout().num_ranks(),
        "adamw: the arenas are laid out for another number of ranks");
  const auto& layouts = arenas.layout().arenas;
  slices_.resize(layouts.size());
  for (size_t a = 0; a < layouts.size(); ++a) {
    formats_.push_back(make_format(layouts[a].format, arenas.layout().reduced_dtype(a), options));
    slices_[a].reserve(layouts[a].placements.size());
    // ue6m10's small end is about eps'; above 2046 it saturates (docs/numerics.md §3).
    if (layouts[a].format.exp_avg_sq == Dtype::kUE6M10) {
      if (options.eps < 1e-8) {
        throw UsageError(
            fmt::format("--adam-eps is {}, expected at least 1e-8 with --exp-avg-sq-dtype ue6m10",
                        options.eps),
            "use --exp-avg-sq-dtype bf16, or a larger --adam-eps");
      }
      if (options.clip_grad == 0) {
        warnings_.emplace_back(
            "exp_avg_sq in ue6m10 without gradient clipping: gradient elements above 45 saturate");
      }
    }
  }

  groups_ = {{.name = "decay", .weight_decay = options.weight_decay},
             {.name = "no decay", .weight_decay = 0}};
  const int64_t count = std::ssize(arenas.parameters());
  for (int64_t p = 0; p < count; ++p) {
    const arch::Parameter& parameter = arenas.parameters()[p];
    DecayGroup& group = groups_[parameter.decayed() ? 0 : 1];
    group.parameters.push_back(p);
    group.num_elements += parameter.numel();
    weight_decays_.push_back(group.weight_decay);
  }
  for (const layout::ShardSlice& slice : arenas.shard()) {
    // A flat run: a parameter's rows follow each other, in memory and in noise addresses.
    templates_.push_back({.weight = arenas.data(MemoryClass::kWeight, slice),
                          .master = arenas.data(MemoryClass::kMaster, slice),
                          .grad = arenas.reduced_gradient(slice),
                          .exp_avg = arenas.data(MemoryClass::kExpAvg, slice),
                          .exp_avg_sq = arenas.data(MemoryClass::kExpAvgSq, slice),
                          .max_exp_avg_sq = arenas.data(MemoryClass::kMaxExpAvgSq, slice),
                          .cols = slice.numel,
                          .global_col0 = slice.first,
                          .global_cols = arenas.parameters()[slice.parameter].numel(),
                          .name_hash = fnv1a(arenas.parameters()[slice.parameter].name)});
  }
  scalars_.resize(count);
  sum_squares_.resize(count);
  contributed_.resize(count);
  updates_.resize(count);
}

StepResult AdamW::step(GradientBuffer& gradients, const StepOptions& options) {
  gradients.finish_step();
  measure(gradients);
  return update(options);
}

void AdamW::measure(const GradientBuffer& gradients, std::span<double> partial_sums) {
  const auto start = std::chrono::steady_clock::now();
  const int64_t count = std::ssize(sum_squares_);
  std::ranges::fill(sum_squares_, 0);
  for (int64_t p = 0; p < count; ++p) contributed_[p] = gradients.contributed(p);
  // A parameter without a contribution here may have some elsewhere; what it lacks everywhere is
  // zero in every bucket and adds nothing.
  for (size_t i = 0; i < templates_.size(); ++i) {
    const layout::ShardSlice& slice = arenas_.shard()[i];
    sum_squares_[slice.parameter] = kernels::sum_squares(
        templates_[i].grad, formats_[slice.arena].format.grad, templates_[i].cols);
  }
  measure_ms_ = milliseconds_since(start);
  if (ranks_ != nullptr && ranks_->size() > 1) exchange(partial_sums);
}

void AdamW::exchange(std::span<double> partial_sums) {
  std::vector<double> numbers;
  numbers.reserve(partial_sums.size() + 2 * sum_squares_.size());
  numbers.insert(numbers.end(), partial_sums.begin(), partial_sums.end());
  numbers.insert(numbers.end(), sum_squares_.begin(), sum_squares_.end());
  numbers.insert(numbers.end(), contributed_.begin(), contributed_.end());
  ranks_->all_reduce_sum(numbers);
  auto next = numbers.begin();
  const auto take = [&](auto& values, auto&& convert) {
    for (auto& value : values) value = convert(*next++);
  };
  take(partial_sums, [](double x) { return x; });
  take(sum_squares_, [](double x) { return x; });
  take(contributed_, [](double x) { return uint8_t{x != 0}; });
}

StepResult AdamW::update(const StepOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  expect(options.lr >= 0 && std::isfinite(options.lr), "learning rate", options.lr,
         "a finite number >= 0");
  expect(options.loss_weight > 0 && std::isfinite(options.loss_weight), "number of target tokens",
         options.loss_weight, "more than 0");

  StepResult result;
  double sum = 0;
  for (int64_t p = 0; p < std::ssize(sum_squares_); ++p) {
    if (!std::isfinite(sum_squares_[p]) && result.bad_parameter < 0) result.bad_parameter = p;
    sum += sum_squares_[p];
  }
  result.grad_norm = std::sqrt(sum) / options.loss_weight;
  result.skipped = result.bad_parameter >= 0;
  if (!result.skipped) {
    result.clip_coefficient = kernels::clip_coefficient(result.grad_norm, options_.clip_grad);
    fill_slices(options.lr, result.clip_coefficient / options.loss_weight);
    if (options.health) result.health.emplace();
    for (size_t a = 0; a < slices_.size(); ++a) {
      const kernels::AdamwFormat& format = formats_[a].format;
      if (options.health) {
        *result.health += kernels::rounding_health(format, slices_[a], options_.seed);
      }
      result.saturated += kernels::adamw_step(format, slices_[a], options_.seed);
    }
    for (size_t p = 0; p < updates_.size(); ++p) updates_[p] += contributed_[p];
    if (options.health && ranks_ != nullptr && ranks_->size() > 1) sum_over_ranks(*result.health, *ranks_);
  }
  result.milliseconds = measure_ms_ + milliseconds_since(start);
  return result;
}

void AdamW::fill_slices(double lr, double grad_scale) {
  for (auto& list : slices_) list.clear();
  for (size_t i = 0; i < templates_.size(); ++i) {
    const int64_t p = arenas_.shard()[i].parameter;
    if (!contributed_[p]) continue;
    const int64_t t = updates_[p] + 1;
    scalars_[p] = kernels::adamw_scalars({.lr = lr,
                                          .beta1 = options_.beta1,
                                          .beta2 = options_.beta2,
                                          .eps = options_.eps,
                                          .weight_decay = weight_decays_[p],
                                          .maximize = options_.maximize},
                                         t, grad_scale);
    kernels::AdamwSlice slice = templates_[i];
    slice.t = t;
    slice.scalars = &scalars_[p];
    slices_[arenas_.shard()[i].arena].push_back(slice);
  }
}

UpdateCounts AdamW::update_counts() const {
  std::map<int64_t, int64_t> frequency;
  for (const int64_t t : updates_) ++frequency[t];
  UpdateCounts counts;
  int64_t most = 0;
  for (const auto& [t, n] : frequency) {
    if (n > most) {
      counts.common = t;
      most = n;
    }
  }
  for (size_t p = 0; p < updates_.size(); ++p) {
    if (updates_[p] != counts.common) {
      counts.exceptions[arenas_.parameters()[p].name] = updates_[p];
    }
  }
  return counts;
}

void AdamW::set_update_counts(const UpdateCounts& counts) {
  auto exceptions = counts.exceptions;
  std::vector<int64_t> updates(updates_.size(), counts.common);
  for (size_t p = 0; p < updates.size(); ++p) {
    const auto found = exceptions.find(arenas_.parameters()[p].name);
    if (found != exceptions.end()) {
      updates[p] = found->second;
      exceptions.erase(found);
    }
    if (updates[p] < 0) {
      throw InputError(fmt::format("update count of '{}' is {}, expected 0 or more",
                                   arenas_.parameters()[p].name, updates[p]));
    }
  }
  if (!exceptions.empty()) {
    throw InputError(fmt::format("update count of '{}', which is not a parameter of this model",
                                 exceptions.begin()->first));
  }
  updates_ = std::move(updates);
}

}  // namespace halfstep::optim
