#include "halfstep/model/row_kernels.h"

#include <cmath>
#include <cstring>
#include <limits>

// Vectors are passed only to functions that are always inlined, so no ABI is involved.
#pragma GCC diagnostic ignored "-Wpsabi"

#define HALFSTEP_INLINE inline __attribute__((always_inline))

namespace halfstep::model {
namespace {

// Eight lanes by the compiler's vector extension: one AVX register, or two of SSE2 or NEON.
using V = float __attribute__((vector_size(32)));
using Int = int32_t __attribute__((vector_size(32)));
using Bits = uint32_t __attribute__((vector_size(32)));
using Half = uint16_t __attribute__((vector_size(16)));
constexpr int64_t kLanes = 8;

// Runs `body`, a lambda marked always_inline, compiled once more for AVX2.
#if defined(__x86_64__)
template <typename Body>
__attribute__((target("avx2"))) void run_avx2(const Body& body) {
  body();
}
#endif
template <typename Body>
void run(const Body& body) {
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (has_avx2) return run_avx2(body);
#endif
  body();
}

// The first n elements at p (all eight if n ≥ 8), zeros in the lanes behind them.
HALFSTEP_INLINE V load(const float* p, int64_t n) {
  V v{};
  if (n >= kLanes) {
    std::memcpy(&v, p, sizeof v);
  } else {
    std::memcpy(&v, p, static_cast<size_t>(n) * sizeof(float));
  }
  return v;
}
HALFSTEP_INLINE void store(float* p, const V& v, int64_t n) {
  if (n >= kLanes) {
    std::memcpy(p, &v, sizeof v);
  } else {
    std::memcpy(p, &v, static_cast<size_t>(n) * sizeof(float));
  }
}
HALFSTEP_INLINE V load(const Bf16* p, int64_t n) {
  Half h{};
  if (n >= kLanes) {
    std::memcpy(&h, p, sizeof h);
  } else {
    std::memcpy(&h, p, static_cast<size_t>(n) * sizeof(Bf16));
  }
  return (V)(__builtin_convertvector(h, Bits) << 16);
}
HALFSTEP_INLINE void store(Bf16* p, const V& v, int64_t n) {  // nearest, ties to even
  const Bits bits = (Bits)v;
  const Bits nan = (Bits)((bits & 0x7FFFFFFFu) > 0x7F800000u);
  const Bits code =
      (((bits + 0x7FFFu + ((bits >> 16) & 1u)) & ~nan) | ((bits | 0x400000u) & nan)) >> 16;
  const Half h = __builtin_convertvector(code, Half);
  std::memcpy(p, &h, static_cast<size_t>(n >= kLanes ? kLanes : n) * sizeof(Bf16));
}

HALFSTEP_INLINE float sum_lanes(const V& v) {
  return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}
HALFSTEP_INLINE V broadcast(float x) { return V{x, x, x, x, x, x, x, x}; }

// e^x to 2 ulp: x = k·ln 2 + r with |r| ≤ ln 2 / 2, Taylor to r⁷ (its remainder is below 6e-9 of
// the result), scaled by 2^k through the exponent bits. Below −87.3 it gives 0, above 88.7 Inf; NaN
// stays.
HALFSTEP_INLINE V exp(const V& x) {
  constexpr float kLog2E = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  constexpr float kLowest = -87.3f, kHighest = 88.72f;
  const V inside = x < kLowest ? broadcast(kLowest) : x > kHighest ? broadcast(kHighest) : x;
  const V magic = broadcast(12582912.0f);  // 1.5·2²³: adding it rounds to an integer
  const V k = (inside * kLog2E + magic) - magic;
  const V r = (inside - k * kLn2High) - k * kLn2Low;
  V p = r * (1.0f / 5040) + (1.0f / 720);
  p = p * r + (1.0f / 120);
  p = p * r + (1.0f / 24);
  p = p * r + (1.0f / 6);
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  // k reaches 128, whose power is no finite number, so the power is applied in two halves.
  const Int whole = __builtin_convertvector(k, Int);
  const Int first = whole >> 1;
  const V scaled = p * (V)((first + 127) << 23) * (V)((whole - first + 127) << 23);
  const V low = x < kLowest ? broadcast(0.0f) : scaled;
  const V high = x > kHighest ? broadcast(std::numeric_limits<float>::infinity()) : low;
  return x != x ? x : high;
}

HALFSTEP_INLINE V sigmoid(const V& x) { return 1.0f / (1.0f + exp(-x)); }

template <typename T>
HALFSTEP_INLINE float inverse_rms(const T* x, double eps, int64_t n) {
  V sums[4] = {};  // four chains hide the latency of the addition
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int64_t j = 0; j < 4; ++j) {
      const V v = load(x + i + j * kLanes, kLanes);
      sums[j] += v * v;
    }
  }
  for (; i < n; i += kLanes) {
    const V v = load(x + i, n - i);
    sums[0] += v * v;
  }
  const float sum = sum_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
  return static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(n) + eps));
}

// With u = weight · grad_y and x̂ = x·s: grad_x = s·(u − x̂·mean(u·x̂)) = s·u − x·(s³·mean(u·x)).
// Returns the factor in parentheses.
template <typename T>
HALFSTEP_INLINE float norm_backward_factor(const T* x, const float* weight, float s,
                                           const T* grad_y, int64_t n) {
  V sum{};
  for (int64_t i = 0; i < n; i += kLanes) {
    sum += load(x + i, n - i) * load(weight + i, n - i) * load(grad_y + i, n - i);
  }
  return sum_lanes(sum) / static_cast<float>(n) * s * s * s;
}

// Where a head stands and how it is rotated.
struct HeadPlace {
  int64_t strided;  // its first element in an array with row_stride
  int64_t index;    // its number among all (row, head): also its place in a contiguous array
  const float* cos;
  const float* sin;
};

template <typename Body>
HALFSTEP_INLINE void for_each_head(const HeadRows& h, int64_t rows, const Body& body) {
  const int64_t half = h.head_dim / 2;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t angles = h.positions[r] * half;
    for (int64_t head = 0; head < h.heads; ++head) {
      body(HeadPlace{.strided = r * h.row_stride + head * h.head_dim,
                     .index = r * h.heads + head,
                     .cos = h.cos + angles,
                     .sin = h.sin + angles});
    }
  }
}

// Lanes of the two halves of a head that belong together.
struct Pair {
  V a, b;
};

template <typename T>
HALFSTEP_INLINE Pair load_pair(const T* p, int64_t i, int64_t half) {
  return {load(p + i, half - i), load(p + half + i, half - i)};
}
template <typename T>
HALFSTEP_INLINE void store_pair(T* p, const Pair& x, int64_t i, int64_t half) {
  store(p + i, x.a, half - i);
  store(p + half + i, x.b, half - i);
}
HALFSTEP_INLINE Pair rotate(const Pair& x, const HeadPlace& at, int64_t i, int64_t half) {
  const V c = load(at.cos + i, half - i), s = load(at.sin + i, half - i);
  return {x.a * c - x.b * s, x.b * c + x.a * s};
}
HALFSTEP_INLINE Pair rotate_back(const Pair& x, const HeadPlace& at, int64_t i, int64_t half) {
  const V c = load(at.cos + i, half - i), s = load(at.sin + i, half - i);
  return {x.a * c + x.b * s, x.b * c - x.a * s};
}

}  // namespace

template <typename T>
void rms_norm_rows(const T* x, const float* weight, double eps, int64_t rows, int64_t cols, T* y,
                   float* inv_rms) {
  run([&]() __attribute__((always_inline)) {
    for (int64_t r = 0; r < rows; ++r) {
      const T* in = x + r * cols;
      T* out = y + r * cols;
      const float s = inv_rms[r] = inverse_rms(in, eps, cols);
      for (int64_t i = 0; i < cols; i += kLanes) {
        store(out + i, load(in + i, cols - i) * s * load(weight + i, cols - i), cols - i);
      }
    }
  });
}

template <typename T>
void rms_norm_backward_rows(const T* x, const float* weight, const float* inv_rms, const T* grad_y,
                            const T* grad_residual, int64_t rows, int64_t cols, T* grad_x,
                            float* grad_weight) {
  run([&]() __attribute__((always_inline)) {
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t row = r * cols;
      const float s = inv_rms[r];
      const float factor = norm_backward_factor(x + row, weight, s, grad_y + row, cols);
      for (int64_t i = 0; i < cols; i += kLanes) {
        const int64_t n = cols - i;
        const V xv = load(x + row + i, n), g = load(grad_y + row + i, n);
        V out = g * load(weight + i, n) * s - xv * factor;
        if (grad_residual != nullptr) out += load(grad_residual + row + i, n);
        store(grad_x + row + i, out, n);
        store(grad_weight + i, load(grad_weight + i, n) + g * xv * s, n);
      }
    }
  });
}

template <typename T>
void rotate_heads(const HeadRows& h, const T* x, int64_t rows, T* out, float* inv_rms) {
  run([&]() __attribute__((always_inline)) {
    const int64_t half = h.head_dim / 2;
    for_each_head(
        h, rows, [&](const HeadPlace& at) __attribute__((always_inline)) {
          const T* in = x + at.strided;
          T* to = out + at.index * h.head_dim;
          float s = 1;
          if (h.norm_weight != nullptr) s = inv_rms[at.index] = inverse_rms(in, h.eps, h.head_dim);
          for (int64_t i = 0; i < half; i += kLanes) {
            Pair v = load_pair(in, i, half);
            if (h.norm_weight != nullptr) {
              const Pair w = load_pair(h.norm_weight, i, half);
              v = {v.a * s * w.a, v.b * s * w.b};
            }
            store_pair(to, rotate(v, at, i, half), i, half);
          }
        });
  });
}

template <typename T>
void rotate_heads_backward(const HeadRows& h, const T* x, const float* inv_rms, const T* grad_out,
                           int64_t rows, T* grad_x, float* grad_norm_weight) {
  run([&]() __attribute__((always_inline)) {
    const int64_t half = h.head_dim / 2;
    for_each_head(
        h, rows, [&](const HeadPlace& at) __attribute__((always_inline)) {
          const T* in = x + at.strided;
          const T* grad = grad_out + at.index * h.head_dim;
          T* to = grad_x + at.strided;
          if (h.norm_weight == nullptr) {
            for (int64_t i = 0; i < half; i += kLanes) {
              store_pair(to, rotate_back(load_pair(grad, i, half), at, i, half), i, half);
            }
            return;
          }
          // u is the gradient of the norm's output: that of its weight, and Σ u·w·x on the way.
          const float s = inv_rms[at.index];
          V dot{};
          for (int64_t i = 0; i < half; i += kLanes) {
            const Pair u = rotate_back(load_pair(grad, i, half), at, i, half);
            const Pair v = load_pair(in, i, half), w = load_pair(h.norm_weight, i, half);
            dot += v.a * w.a * u.a + v.b * w.b * u.b;
            const Pair sum = load_pair(grad_norm_weight, i, half);
            store_pair(grad_norm_weight, {sum.a + u.a * v.a * s, sum.b + u.b * v.b * s}, i, half);
          }
          const float factor = sum_lanes(dot) / static_cast<float>(h.head_dim) * s * s * s;
          for (int64_t i = 0; i < half; i += kLanes) {
            const Pair u = rotate_back(load_pair(grad, i, half), at, i, half);
            const Pair v = load_pair(in, i, half), w = load_pair(h.norm_weight, i, half);
            store_pair(to, {u.a * w.a * s - v.a * factor, u.b * w.b * s - v.b * factor}, i, half);
          }
        });
  });
}

template <typename T>
void swiglu_rows(const T* gate_up, int64_t rows, int64_t cols, T* y) {
  run([&]() __attribute__((always_inline)) {
    for (int64_t r = 0; r < rows; ++r) {
      const T* gate = gate_up + 2 * r * cols;
      for (int64_t i = 0; i < cols; i += kLanes) {
        const V g = load(gate + i, cols - i), u = load(gate + cols + i, cols - i);
        store(y + r * cols + i, g * sigmoid(g) * u, cols - i);
      }
    }
  });
}

template <typename T>
void swiglu_backward_rows(const T* gate_up, const T* grad_y, int64_t rows, int64_t cols,
                          T* grad_gate_up) {
  run([&]() __attribute__((always_inline)) {
    for (int64_t r = 0; r < rows; ++r) {
      const T* gate = gate_up + 2 * r * cols;
      T* out = grad_gate_up + 2 * r * cols;
      for (int64_t i = 0; i < cols; i += kLanes) {
        const int64_t n = cols - i;
        const V g = load(gate + i, n), u = load(gate + cols + i, n);
        const V dy = load(grad_y + r * cols + i, n), s = sigmoid(g);
        store(out + i, dy * u * s * (1.0f + g * (1.0f - s)), n);
        store(out + cols + i, dy * g * s, n);
      }
    }
  });
}

void log_sum_exp_rows(const float* logits, int64_t rows, int64_t cols, float* log_sum_exp) {
  run([&]() __attribute__((always_inline)) {
    constexpr float kLowest = std::numeric_limits<float>::lowest();
    for (int64_t r = 0; r < rows; ++r) {
      const float* row = logits + r * cols;
      V top = broadcast(kLowest);
      int64_t i = 0;
      for (; i + kLanes <= cols; i += kLanes) {
        const V v = load(row + i, kLanes);
        top = v > top ? v : top;
      }
      float max = kLowest;
      for (int64_t j = 0; j < kLanes; ++j) max = top[j] > max ? top[j] : max;
      for (int64_t j = i; j < cols; ++j) max = row[j] > max ? row[j] : max;

      // A NaN or Inf in the row makes the sum NaN or Inf, and so the loss.
      double sum = 0;
      i = 0;
      while (i + kLanes <= cols) {
        V part{};
        const int64_t end = cols - i > 1024 ? i + 1024 : cols;  // FP32 within a run of 1024
        for (; i + kLanes <= end; i += kLanes) part += exp(load(row + i, kLanes) - max);
        sum += sum_lanes(part);
      }
      for (; i < cols; ++i) sum += std::exp(row[i] - max);
      log_sum_exp[r] = static_cast<float>(max + std::log(sum));
    }
  });
}

void cross_entropy_gradient_rows(float* logits, const float* log_sum_exp, const int64_t* targets,
                                 float scale, int64_t rows, int64_t cols) {
  run([&]() __attribute__((always_inline)) {
    for (int64_t r = 0; r < rows; ++r) {
      float* row = logits + r * cols;
      if (targets[r] < 0) {
        std::memset(row, 0, static_cast<size_t>(cols) * sizeof(float));
        continue;
      }
      for (int64_t i = 0; i < cols; i += kLanes) {
        store(row + i, scale * exp(load(row + i, cols - i) - log_sum_exp[r]), cols - i);
      }
      row[targets[r]] -= scale;
    }
  });
}

#define HALFSTEP_INSTANTIATE(T)                                                                   \
  template void rms_norm_rows(const T*, const float*, double, int64_t, int64_t, T*, float*);      \
  template void rms_norm_backward_rows(const T*, const float*, const float*, const T*, const T*,  \
                                       int64_t, int64_t, T*, float*);                             \
  template void rotate_heads(const HeadRows&, const T*, int64_t, T*, float*);                     \
  template void rotate_heads_backward(const HeadRows&, const T*, const float*, const T*, int64_t, \
                                      T*, float*);                                                \
  template void swiglu_rows(const T*, int64_t, int64_t, T*);                                      \
  template void swiglu_backward_rows(const T*, const T*, int64_t, int64_t, T*);
HALFSTEP_INSTANTIATE(float)
HALFSTEP_INSTANTIATE(Bf16)
#undef HALFSTEP_INSTANTIATE

}  // namespace halfstep::model
