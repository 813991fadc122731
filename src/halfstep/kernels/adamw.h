// The AdamW step over slices of parameters, in one pass over memory (docs/numerics.md §2–§6).
// Every implementation behind it (see implementation.h) writes the same bits, and so does any
// number of threads and any cut of a parameter into slices. No allocation. Callers: optim, the
// Python package, benches. One call at a time per thread pool.
#pragma once

#include <cstdint>
#include <span>

#include "halfstep/core/dtype.h"
#include "halfstep/core/thread_pool.h"

namespace halfstep::kernels {

// How the tensors of a slice are stored: what picks a kernel.
struct AdamwFormat {
  Dtype weight = Dtype::kBF16;            // kBF16, or kF32 (then master is kNone)
  MasterMode master = MasterMode::kFp32;  // kNone with a BF16 weight: the weight itself, by SR
  Dtype grad = Dtype::kF32;               // kF32 or kBF16
  Dtype exp_avg = Dtype::kF32;            // kF32 or kBF16
  Dtype exp_avg_sq = Dtype::kF32;         // kF32, kBF16 or kUE6M10
  Rounding exp_avg_rounding = Rounding::kNearest;     // without effect on kF32
  Rounding exp_avg_sq_rounding = Rounding::kNearest;  // without effect on kF32
  bool amsgrad = false;  // max_exp_avg_sq in exp_avg_sq's dtype, always rounded to nearest

  friend bool operator==(const AdamwFormat&, const AdamwFormat&) = default;
};

// What a user chooses; all in FP64.
struct AdamwHyperparameters {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  bool maximize = false;
};

// The scalars of one step, named as in docs/numerics.md §2. Each is computed in FP64 with IEEE
// operations only and rounded once.
struct AdamwScalars {
  float c1;   // 1 − β1
  float b2;   // β2
  float c2;   // 1 − β2
  float q;    // lr · weight_decay
  float a;    // lr / (1 − β1^t)
  float r;    // 1 / √(1 − β2^t)
  float eps;  //
  float s;    // gradient scale: clip factor / loss weight, negated to maximize
};

// t ≥ 1: the parameter's step, this one included. grad_scale = clip factor / loss weight (see
// clip_coefficient). That factor is one for all parameters of a step and is logged, so it is
// computed once and handed in, where docs/numerics.md §1 writes Σg² and the weight: the same FP64
// operations. Throws UsageError if a scalar is not finite.
AdamwScalars adamw_scalars(const AdamwHyperparameters& hyper, int64_t t, double grad_scale);

// min(1, max_norm / (norm + 1e-6)); 1 if max_norm is 0 (clipping off). `norm` is that of the mean
// gradient: √(Σ stored²) / loss weight.
double clip_coefficient(double norm, double max_norm);

// A rectangle of one parameter, contiguous in memory (rows × cols elements), and where it stands in
// the whole parameter: element (row, col) has the noise address
// (global_row0 + row) · global_cols + global_col0 + col. A 1-D slice is rows = 1.
struct AdamwSlice {
  void* weight = nullptr;
  void* master = nullptr;      // float for kFp32, int16_t remainder for kSplit, else unused
  const void* grad = nullptr;  // the stored sum; scaled by AdamwScalars::s
  void* exp_avg = nullptr;
  void* exp_avg_sq = nullptr;
  void* max_exp_avg_sq = nullptr;  // only with amsgrad
  int64_t rows = 1;
  int64_t cols = 0;
  int64_t global_row0 = 0;
  int64_t global_col0 = 0;
  int64_t global_cols = 0;
  uint64_t name_hash = 0;  // fnv1a of the parameter's name
  int64_t t = 0;           // the parameter's step, this one included
  const AdamwScalars* scalars = nullptr;
};

// Updates all slices. Arrays may be misaligned to any element boundary and must not overlap.
// Returns the number of finite exp_avg_sq values that saturated (ue6m10 only, docs/numerics.md §3).
int64_t adamw_step(const AdamwFormat& format, std::span<const AdamwSlice> slices, uint64_t seed,
                   ThreadPool& pool = ThreadPool::global());

// Rounding health (docs/numerics.md §8) of the step that adamw_step would now take on the same
// arguments: reads only, samples one block of 8 elements in each run of 64 blocks. The result of
// several calls (formats, parameter groups) is added up with +=.
struct RoundingHealth {
  struct Flow {  // sums over sampled elements of stored' − stored and exact' − stored
    double moved = 0, exact = 0;
    int64_t count = 0;
  };
  Flow weight_up, weight_down, exp_avg_sq_up, exp_avg_sq_down;
  int64_t sampled = 0;             // elements looked at
  int64_t nonzero = 0, small = 0;  // exp_avg_sq: non-zero ones, and those under full precision

  RoundingHealth& operator+=(const RoundingHealth& other);
  // 1 − moved/exact, the larger of up and down; 0 for unbiased rounding, 1 where nothing moves.
  double lost_weight() const;
  double lost_exp_avg_sq() const;
};
RoundingHealth rounding_health(const AdamwFormat& format, std::span<const AdamwSlice> slices,
                               uint64_t seed, ThreadPool& pool = ThreadPool::global());

}  // namespace halfstep::kernels
