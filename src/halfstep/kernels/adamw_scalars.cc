// The scalars of a step: FP64, IEEE operations only, so any host or device computes the same bits
// (docs/numerics.md §1).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "halfstep/core/error.h"
#include "halfstep/kernels/adamw.h"

namespace halfstep::kernels {
namespace {

// base^exponent by binary powering, lowest bit first: a fixed order of multiplications, unlike pow.
double power(double base, int64_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent >>= 1) {
    if (exponent & 1) result *= base;
    base *= base;
  }
  return result;
}

}  // namespace

AdamwScalars adamw_scalars(const AdamwHyperparameters& h, int64_t t, double grad_scale) {
  if (t < 1) throw UsageError(fmt::format("adamw: step {}, expected at least 1", t));
  const AdamwScalars scalars = {
      .c1 = static_cast<float>(1 - h.beta1),
      .b2 = static_cast<float>(h.beta2),
      .c2 = static_cast<float>(1 - h.beta2),
      .q = static_cast<float>(h.lr * h.weight_decay),
      .a = static_cast<float>(h.lr / (1 - power(h.beta1, t))),
      .r = static_cast<float>(1 / std::sqrt(1 - power(h.beta2, t))),
      .eps = static_cast<float>(h.eps),
      .s = static_cast<float>(h.maximize ? -grad_scale : grad_scale),
  };
  for (float scalar : {scalars.c1, scalars.b2, scalars.c2, scalars.q, scalars.a, scalars.r,
                       scalars.eps, scalars.s}) {
    if (!std::isfinite(scalar)) {
      throw UsageError(
          fmt::format("adamw: lr {}, betas {} {}, eps {}, weight decay {}, gradient "
                      "scale {} at step {} give a scalar that is not a finite FP32",
                      h.lr, h.beta1, h.beta2, h.eps, h.weight_decay, grad_scale, t));
    }
  }
  return scalars;
}

double clip_coefficient(double norm, double max_norm) {
  if (max_norm == 0) return 1;
  return std::min(1.0, max_norm / (norm + 1e-6));
}

}  // namespace halfstep::kernels
