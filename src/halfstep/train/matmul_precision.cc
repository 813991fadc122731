#include "halfstep/train/matmul_precision.h"

#include <ATen/ATen.h>
#include <fmt/core.h>

#include <algorithm>
#include <chrono>

#include "halfstep/train/format_text.h"

namespace halfstep::train {
namespace {

// The best of a few square matmuls, large enough to fill the cores and small enough for a start-up.
double measure_flops(at::ScalarType dtype) {
  using Clock = std::chrono::steady_clock;
  constexpr int64_t kSize = 768;
  constexpr double kBudgetSeconds = 0.15;
  at::NoGradGuard no_grad;
  const at::Tensor a = at::ones({kSize, kSize}, dtype);
  const at::Tensor b = at::ones({kSize, kSize}, dtype);
  at::Tensor c = at::mm(a, b.t());  // warms caches and threads
  double best = 1e30, spent = 0;
  for (int run = 0; run < 8 && (run < 2 || spent < kBudgetSeconds); ++run) {
    const auto start = Clock::now();
    at::mm_out(c, a, b.t());
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::min(best, seconds);
    spent += seconds;
  }
  return 2.0 * kSize * kSize * kSize / best;
}

}  // namespace

ComputeChoice choose_compute(MatmulPrecision asked, bool bf16_weights) {
  if (asked == MatmulPrecision::kAuto && bf16_weights) {
    const double fp32 = measure_flops(at::kFloat), bf16 = measure_flops(at::kBFloat16);
    const std::string rates =
        fmt::format("matmul fp32 {}FLOP/s, bf16 {}FLOP/s", format_count(fp32), format_count(bf16));
    // Near a tie FP32 is the better choice: it does not round activations.
    if (bf16 > 1.2 * fp32) return {at::kBFloat16, bf16, "measured: " + rates};
    return {at::kFloat, fp32, "measured: " + rates};
  }
  const bool bf16 = asked == MatmulPrecision::kBF16;
  const at::ScalarType dtype = bf16 ? at::kBFloat16 : at::kFloat;
  const double flops = measure_flops(dtype);
  const std::string why = asked == MatmulPrecision::kAuto ? "FP32 weights" : "as asked";
  return {dtype, flops, fmt::format("{}; matmul {}FLOP/s", why, format_count(flops))};
}

}  // namespace halfstep::train
