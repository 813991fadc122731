// The formats that get a loop of their own (adamw_template-inl.h), numbered: what people run, which
// is a BF16 weight with a split or FP32 master, gradients in BF16 or FP32, and either 16-bit state
// (exp_avg in BF16, exp_avg_sq in BF16 or ue6m10, each with either rounding) or FP32 state.
#pragma once

#include <optional>

#include "halfstep/kernels/adamw.h"

namespace halfstep::kernels {

// Formats of one master mode: 16 with 16-bit state, 2 with FP32 state.
inline constexpr int kTemplatesPerMaster = 18;

constexpr AdamwFormat template_format(MasterMode master, int index) {
  const auto bit = [&](int k) { return (index >> k & 1) != 0; };
  AdamwFormat format{.master = master, .grad = bit(0) ? Dtype::kF32 : Dtype::kBF16};
  if (index < 16) {
    format.exp_avg = Dtype::kBF16;
    format.exp_avg_rounding = bit(1) ? Rounding::kStochastic : Rounding::kNearest;
    format.exp_avg_sq = bit(2) ? Dtype::kUE6M10 : Dtype::kBF16;
    format.exp_avg_sq_rounding = bit(3) ? Rounding::kStochastic : Rounding::kNearest;
  }
  return format;
}

// The number of a format among those of its master mode, if it has a template.
constexpr std::optional<int> template_index(const AdamwFormat& format) {
  const bool has_master = format.master == MasterMode::kSplit || format.master == MasterMode::kFp32;
  if (format.weight != Dtype::kBF16 || !has_master || format.amsgrad) return std::nullopt;
  const int grad = format.grad == Dtype::kF32;
  if (format.exp_avg == Dtype::kF32 && format.exp_avg_sq == Dtype::kF32) return 16 + grad;
  if (format.exp_avg != Dtype::kBF16 || format.exp_avg_sq == Dtype::kF32) return std::nullopt;
  return grad | (format.exp_avg_rounding == Rounding::kStochastic) << 1 |
         (format.exp_avg_sq == Dtype::kUE6M10) << 2 |
         (format.exp_avg_sq_rounding == Rounding::kStochastic) << 3;
}

}  // namespace halfstep::kernels
