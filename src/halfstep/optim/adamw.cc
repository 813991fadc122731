#include "halfstep/optim/adamw.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>

#include "halfstep/core/error.h"
#include "halfstep/core/hash.h"
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

ArenaFormat make_format(const layout::StorageFormat& stored, const AdamWOptions& o) {
  ArenaFormat made;
  made.exp_avg = kernels::choose_state_rounding(stored.exp_avg, o.beta1, o.state_rounding,
                                                o.allow_stalling_rounding, "exp_avg");
  made.exp_avg_sq = kernels::choose_state_rounding(stored.exp_avg_sq, o.beta2, o.state_rounding,
                                                   o.allow_stalling_rounding, "exp_avg_sq");
  made.format = {.weight = stored.weight,
                 .master = stored.master,
                 .grad = stored.gradient,
                 .exp_avg = stored.exp_avg,
                 .exp_avg_sq = stored.exp_avg_sq,
                 .exp_avg_rounding = made.exp_avg.rounding,
                 .exp_avg_sq_rounding = made.exp_avg_sq.rounding,
                 .amsgrad = stored.amsgrad};
  return made;
}

}  // namespace

AdamW::AdamW(Arenas& arenas, const AdamWOptions& options) : arenas_(arenas), options_(options) {
  validate(options);
  const auto& layouts = arenas.layout().arenas;
  slices_.resize(layouts.size());
  for (size_t a = 0; a < layouts.size(); ++a) {
    formats_.push_back(make_format(layouts[a].format, options));
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
    // A whole parameter is one run: its rows follow each other, in memory and in noise addresses.
    templates_.push_back({.weight = arenas.data(MemoryClass::kWeight, p),
                          .master = arenas.data(MemoryClass::kMaster, p),
                          .grad = arenas.data(MemoryClass::kGradient, p),
                          .exp_avg = arenas.data(MemoryClass::kExpAvg, p),
                          .exp_avg_sq = arenas.data(MemoryClass::kExpAvgSq, p),
                          .max_exp_avg_sq = arenas.data(MemoryClass::kMaxExpAvgSq, p),
                          .cols = parameter.numel(),
                          .global_cols = parameter.numel(),
                          .name_hash = fnv1a(parameter.name)});
  }
  scalars_.resize(count);
  sum_squares_.resize(count);
  updates_.resize(count);
}

StepResult AdamW::step(GradientBuffer& gradients, const StepOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  expect(options.lr >= 0 && std::isfinite(options.lr), "learning rate", options.lr,
         "a finite number >= 0");
  expect(options.loss_weight > 0 && std::isfinite(options.loss_weight), "number of target tokens",
         options.loss_weight, "more than 0");
  gradients.finish_step();

  StepResult result;
  result.grad_norm = measure_norm(gradients, result.bad_parameter) / options.loss_weight;
  result.skipped = result.bad_parameter >= 0;
  if (!result.skipped) {
    result.clip_coefficient = kernels::clip_coefficient(result.grad_norm, options_.clip_grad);
    fill_slices(gradients, options.lr, result.clip_coefficient / options.loss_weight);
    if (options.health) result.health.emplace();
    for (size_t a = 0; a < slices_.size(); ++a) {
      const kernels::AdamwFormat& format = formats_[a].format;
      if (options.health) {
        *result.health += kernels::rounding_health(format, slices_[a], options_.seed);
      }
      result.saturated += kernels::adamw_step(format, slices_[a], options_.seed);
    }
    for (size_t p = 0; p < updates_.size(); ++p) updates_[p] += gradients.contributed(p);
  }
  result.milliseconds =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return result;
}

double AdamW::measure_norm(const GradientBuffer& gradients, int64_t& bad_parameter) {
  double sum = 0;
  for (int64_t p = 0; p < std::ssize(sum_squares_); ++p) {
    sum_squares_[p] = 0;
    if (!gradients.contributed(p)) continue;
    sum_squares_[p] = kernels::sum_squares(
        templates_[p].grad, arenas_.layout().arena_of(p).format.gradient, templates_[p].cols);
    if (!std::isfinite(sum_squares_[p]) && bad_parameter < 0) bad_parameter = p;
    sum += sum_squares_[p];
  }
  return std::sqrt(sum);
}

void AdamW::fill_slices(const GradientBuffer& gradients, double lr, double grad_scale) {
  for (auto& list : slices_) list.clear();
  for (int64_t p = 0; p < std::ssize(templates_); ++p) {
    if (!gradients.contributed(p)) continue;
    const int64_t t = updates_[p] + 1;
    scalars_[p] = kernels::adamw_scalars({.lr = lr,
                                          .beta1 = options_.beta1,
                                          .beta2 = options_.beta2,
                                          .eps = options_.eps,
                                          .weight_decay = weight_decays_[p],
                                          .maximize = options_.maximize},
                                         t, grad_scale);
    kernels::AdamwSlice slice = templates_[p];
    slice.t = t;
    slice.scalars = &scalars_[p];
    slices_[arenas_.layout().locations[p].arena].push_back(slice);
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
