// The elementwise parts of a transformer layer as fused loops over rows of plain memory: each reads
// its inputs once and writes its outputs once, where a chain of tensor operations would make ten
// passes. Single-threaded and stateless; ops/ calls them on blocks of rows from many threads. All
// arithmetic is FP32 whatever the storage type T of activations is (float or Bf16). AVX2 is used
// where the CPU has it; both paths execute the same operations in the same order, so they agree
// bit for bit.
#pragma once

#include <cstdint>

namespace halfstep::model {

struct Bf16 {
  uint16_t bits;
};

// y = x / rms(x) · weight per row, with rms(x) = √(mean(x²) + eps); inv_rms[row] = 1 / rms.
template <typename T>
void rms_norm_rows(const T* x, const float* weight, double eps, int64_t rows, int64_t cols, T* y,
                   float* inv_rms);

// grad_x = d/dx of the above applied to grad_y, plus grad_residual (where not null), and
// grad_weight[cols] += Σ rows grad_y · x / rms.
template <typename T>
void rms_norm_backward_rows(const T* x, const float* weight, const float* inv_rms, const T* grad_y,
                            const T* grad_residual, int64_t rows, int64_t cols, T* grad_x,
                            float* grad_weight);

// The heads of one kind (q or k) inside rows of the fused q, k, v projection.
struct HeadRows {
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t row_stride = 0;  // elements from one token's heads to the next in the projection
  const float* norm_weight = nullptr;  // [head_dim]: RMSNorm of each head before the rotation
  double eps = 0;
  const int64_t* positions = nullptr;  // [rows]
  const float* cos = nullptr;          // [max position + 1, head_dim / 2]
  const float* sin = nullptr;
};

// out[row, head, :] = rotate(norm(x[row, head, :])): RoPE in the half-split convention, pairs are
// (i, i + head_dim / 2). inv_rms[row, head] is written if there is a norm.
template <typename T>
void rotate_heads(const HeadRows& h, const T* x, int64_t rows, T* out, float* inv_rms);

// The gradient of rotate_heads: grad_out [row, head, :] contiguous, grad_x with row_stride;
// grad_norm_weight[head_dim] is added to.
template <typename T>
void rotate_heads_backward(const HeadRows& h, const T* x, const float* inv_rms, const T* grad_out,
                           int64_t rows, T* grad_x, float* grad_norm_weight);

// y[row, :] = silu(gate) · up for rows of gate_up [gate | up], each `cols` wide.
template <typename T>
void swiglu_rows(const T* gate_up, int64_t rows, int64_t cols, T* y);
template <typename T>
void swiglu_backward_rows(const T* gate_up, const T* grad_y, int64_t rows, int64_t cols,
                          T* grad_gate_up);

// Cross entropy over FP32 logits. log_sum_exp[row] = log Σ exp(logits[row, :]).
void log_sum_exp_rows(const float* logits, int64_t rows, int64_t cols, float* log_sum_exp);
// In place: logits[row, :] = scale · (exp(logits − log_sum_exp[row]) − [col == target[row]]), and 0
// for rows whose target is negative.
void cross_entropy_gradient_rows(float* logits, const float* log_sum_exp, const int64_t* targets,
                                 float scale, int64_t rows, int64_t cols);

}  // namespace halfstep::model
