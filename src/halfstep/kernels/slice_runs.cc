#include "halfstep/kernels/slice_runs.h"

#include <fmt/format.h>

#include <cmath>

#include "halfstep/core/error.h"

namespace halfstep::kernels {
namespace {

void check_format(const AdamwFormat& f) {
  const auto is_one_of = [](Dtype dtype, std::initializer_list<Dtype> allowed) {
    return std::find(allowed.begin(), allowed.end(), dtype) != allowed.end();
  };
  const auto refuse = [](const char* what, Dtype got, const char* expected) {
    throw UsageError(
        fmt::format("adamw: {} is stored as {}, expected {}", what, dtype_name(got), expected));
  };
  if (!is_one_of(f.weight, {Dtype::kF32, Dtype::kBF16})) refuse("weight", f.weight, "fp32 or bf16");
  if (!is_one_of(f.grad, {Dtype::kF32, Dtype::kBF16})) refuse("gradient", f.grad, "fp32 or bf16");
  if (!is_one_of(f.exp_avg, {Dtype::kF32, Dtype::kBF16})) {
    refuse("exp_avg", f.exp_avg, "fp32 or bf16");
  }
  if (!is_one_of(f.exp_avg_sq, {Dtype::kF32, Dtype::kBF16, Dtype::kUE6M10})) {
    refuse("exp_avg_sq", f.exp_avg_sq, "fp32, bf16 or ue6m10");
  }
  if (f.weight == Dtype::kF32 && f.master != MasterMode::kNone) {
    throw UsageError(fmt::format("adamw: fp32 weights with a {} master; they are their own master",
                                 master_name(f.master)));
  }
}

void check_slice(const AdamwFormat& format, const AdamwSlice& s, size_t index) {
  const auto require = [&](bool condition, const char* expected) {
    if (!condition) {
      throw UsageError(fmt::format(
          "adamw: slice {} of {} x {} elements at row {}, column {} of a parameter with {} "
          "columns, "
          "step {}: expected {}",
          index, s.rows, s.cols, s.global_row0, s.global_col0, s.global_cols, s.t, expected));
    }
  };
  require(s.rows >= 0 && s.cols >= 0 && s.global_row0 >= 0 && s.global_col0 >= 0 &&
              s.rows <= kMaxElements && s.cols <= kMaxElements && s.global_row0 <= kMaxElements &&
              s.global_col0 <= kMaxElements,
          "sizes and positions in [0, 2^51]");
  if (s.rows == 0 || s.cols == 0) return;
  require(s.global_cols >= s.global_col0 + s.cols, "columns inside the parameter");
  require(s.global_row0 + s.rows <= kMaxElements / s.global_cols,
          "fewer than 2^51 elements in a parameter (noise blocks below 2^48)");
  require(s.t >= 1, "a step of at least 1");
  require(s.weight && s.grad && s.exp_avg && s.exp_avg_sq,
          "weight, gradient, exp_avg and exp_avg_sq");
  require(s.master || format.master == MasterMode::kNone, "a master");
  require(s.max_exp_avg_sq || !format.amsgrad, "max_exp_avg_sq, since amsgrad is on");
  require(s.scalars != nullptr, "scalars");
  const AdamwScalars& k = *s.scalars;
  for (float scalar : {k.c1, k.b2, k.c2, k.q, k.a, k.r, k.eps, k.s}) {
    require(std::isfinite(scalar), "scalars that are all finite");
  }
}

}  // namespace

void check_noise_range(int64_t first, int64_t n) {
  if (n < 0 || first < 0 || n > kMaxElements || first > kMaxElements - n) {
    throw UsageError(fmt::format(
        "kernels: {} elements from element {} of a parameter: expected a range in [0, 2^51) "
        "(noise blocks below 2^48)",
        n, first));
  }
}

void check_adamw_arguments(const AdamwFormat& format, std::span<const AdamwSlice> slices) {
  check_format(format);
  for (size_t i = 0; i < slices.size(); ++i) check_slice(format, slices[i], i);
}

}  // namespace halfstep::kernels
