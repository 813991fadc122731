// The dtype in which the model computes. Weights may be BF16 in memory and still be multiplied in
// FP32: on a CPU without BF16 units that is several times faster, so `auto` measures both at start.
// The measured rate is also the peak that model FLOP utilisation is a share of.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "halfstep/train/options.h"

namespace halfstep::train {

struct ComputeChoice {
  at::ScalarType dtype = at::kFloat;
  double peak_flops = 0;  // of one matmul in this dtype, per second
  std::string reason;     // for the start-up report
};

// FP32 weights compute in FP32 with `auto`: BF16 would round what the user asked to keep.
ComputeChoice choose_compute(MatmulPrecision asked, bool bf16_weights);

}  // namespace halfstep::train
