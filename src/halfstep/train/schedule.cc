#include "halfstep/train/schedule.h"

#include <cmath>
#include <numbers>

namespace halfstep::train {
namespace {

double half_cosine(double ratio) { return 0.5 * (std::cos(std::numbers::pi * ratio) + 1); }

// From 1 to 0 as `ratio` goes from 0 to 1.
double wsd_coefficient(WsdDecayStyle style, double ratio) {
  switch (style) {
    case WsdDecayStyle::kExponential:
      return 2 * std::pow(0.5, ratio) - 1;
    case WsdDecayStyle::kLinear:
      return 1 - ratio;
    case WsdDecayStyle::kCosine:
      return half_cosine(ratio);
    case WsdDecayStyle::kMinusSqrt:
      return 1 - std::sqrt(ratio);
  }
  return 0;
}

}  // namespace

double Schedule::at(int64_t iteration) const {
  const double i = static_cast<double>(iteration);
  if (warmup_iters > 0 && i <= warmup_iters) return lr * i / warmup_iters;
  if (style == DecayStyle::kConstant) return lr;
  if (i > decay_iters) return min_lr;
  double coefficient = 1;
  if (style == DecayStyle::kWsd) {
    const double start = decay_iters - wsd_decay_iters;
    if (i > start) coefficient = wsd_coefficient(wsd_style, (i - start) / wsd_decay_iters);
  } else {
    const double ratio = (i - warmup_iters) / (decay_iters - warmup_iters);
    coefficient = style == DecayStyle::kLinear ? 1 - ratio : half_cosine(ratio);
  }
  return min_lr + coefficient * (lr - min_lr);
}

Schedule make_schedule(const Options& options) {
  const double decay_iters = static_cast<double>(options.lr_decay_iters > 0 ? options.lr_decay_iters
                                                                            : options.train_iters);
  return {.lr = options.lr,
          .min_lr = options.min_lr,
          .style = options.lr_decay_style,
          .warmup_iters = options.lr_warmup_fraction > 0
                              ? options.lr_warmup_fraction * decay_iters
                              : static_cast<double>(options.lr_warmup_iters),
          .decay_iters = decay_iters,
          .wsd_decay_iters = static_cast<double>(options.lr_wsd_decay_iters),
          .wsd_style = options.lr_wsd_decay_style};
}

}  // namespace halfstep::train
