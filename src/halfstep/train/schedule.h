// The learning rate of each iteration, as a pure function of its index: nothing to save, and a
// resumed run continues on the same curve. The curves are Megatron's, first step included: with a
// warm-up, iteration 0 has learning rate 0.
#pragma once

#include <cstdint>

#include "halfstep/train/options.h"

namespace halfstep::train {

struct Schedule {
  double lr = 0;
  double min_lr = 0;
  DecayStyle style = DecayStyle::kConstant;
  double warmup_iters = 0;     // may be fractional: a fraction of decay_iters
  double decay_iters = 0;      // the curve reaches min_lr here and stays
  double wsd_decay_iters = 0;  // WSD: the last part of decay_iters, in which it falls
  WsdDecayStyle wsd_style = WsdDecayStyle::kExponential;

  // `iteration` counts the iterations done before this one: 0, 1, …
  double at(int64_t iteration) const;
};

Schedule make_schedule(const Options& options);

}  // namespace halfstep::train
