#include "halfstep/kernels/rounding_policy.h"

#include <fmt/format.h>

#include <cmath>

#include "halfstep/core/error.h"

namespace halfstep::kernels {
namespace {

// One step of a moving average changes it by at most the share 1−β. The sizes below are in units of
// 2^-M, the spacing of a format with M mantissa bits just above a power of two (half of it,
// relative to the value, just below the next).
//
// Nearest is unbiased in every measurement from 5.12 units up, and less noisy than stochastic
// there.
constexpr double kUnbiasedUnits = 5.12;
// Below half a unit, nearest rounds every decay step of the larger mantissas back: it stalls.
constexpr double kStallingUnits = 0.5;

// Up to so many contributions nearest is unbiased enough: adding up equal gradients is wrong by 3 %
// at 32 of them, 12 % at 128, and in the end stalls.
constexpr int64_t kNearestContributions = 32;

}  // namespace

RoundingChoice choose_state_rounding(Dtype dtype, double beta, std::optional<Rounding> asked,
                                     bool allow_stalling, const char* state) {
  if (dtype == Dtype::kF32) return {Rounding::kNearest, "fp32: stored as computed"};
  const double unit = std::ldexp(1.0, -mantissa_bits(dtype));
  const double change = 1 - beta;
  const double unbiased_from = kUnbiasedUnits * unit;
  const double stalls_below = kStallingUnits * unit;
  if (asked == Rounding::kNearest && change < stalls_below) {
    const std::string reason = fmt::format("1 - beta = {:.3g} is below {:.3g}, half a step of {}",
                                           change, stalls_below, dtype_name(dtype));
    if (!allow_stalling) {
      throw UsageError(fmt::format("{} rounded to nearest would stop moving: {}", state, reason),
                       "use --state-rounding auto (or stochastic), or, to see it stall, add "
                       "--allow-stalling-rounding");
    }
    return {Rounding::kNearest, "asked for although it stalls: " + reason};
  }
  if (asked) return {*asked, "asked for"};
  if (change >= unbiased_from) {
    return {Rounding::kNearest,
            fmt::format("1 - beta = {:.3g} >= {:.3g}: nearest is unbiased", change, unbiased_from)};
  }
  return {Rounding::kStochastic, fmt::format("1 - beta = {:.3g} < {:.3g}: nearest would be biased",
                                             change, unbiased_from)};
}

// Each of the K−1 additions makes an error of `per_rounding` times the sum so far, whose variance
// grows linearly; their sum over the final variance K is per_rounding²·(K²/2)/K. per_rounding is
// the rms over mantissas uniform in the logarithm of step/√12 (nearest) or step/√6 (stochastic):
// 2^-7 · √(.541/12), 2^-7 · √(.541/6).
double expected_accumulation_error(Dtype dtype, int64_t contributions, Rounding rounding) {
  if (dtype == Dtype::kF32 || contributions <= 1) return 0;
  const double step = std::ldexp(1.0, -mantissa_bits(dtype));
  const double mean_inverse_square = 3 / (8 * std::log(2.0));
  const double variance = mean_inverse_square / (rounding == Rounding::kNearest ? 12 : 6);
  return step * std::sqrt(variance * static_cast<double>(contributions) / 2);
}

RoundingChoice choose_accumulation_rounding(Dtype dtype, int64_t contributions,
                                            std::optional<Rounding> asked) {
  if (dtype == Dtype::kF32) return {Rounding::kNearest, "fp32: added up exactly enough"};
  const Rounding automatic =
      contributions <= kNearestContributions ? Rounding::kNearest : Rounding::kStochastic;
  const Rounding rounding = asked.value_or(automatic);
  return {rounding, fmt::format("{}{} contributions, expected error of the sum {:.2g} % rms",
                                asked ? "asked for; " : "", contributions,
                                100 * expected_accumulation_error(dtype, contributions, rounding))};
}

}  // namespace halfstep::kernels
