// A parameter of n elements with its optimizer state, stepped through kernels::adamw_step: what
// most numerics tests look at. Gradients are FP32; everything else has the format's dtype.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>
#include <vector>

#include "halfstep/core/bf16.h"
#include "halfstep/core/hash.h"
#include "halfstep/core/split_weight.h"
#include "halfstep/core/thread_pool.h"
#include "halfstep/core/ue6m10.h"
#include "halfstep/kernels/adamw.h"

namespace halfstep::kernels {

class Array {
 public:
  Array(Dtype dtype, size_t n)
      : dtype_(dtype), bytes_(n * static_cast<size_t>(dtype_bytes(dtype))) {}
  void* data() { return bytes_.data(); }
  const void* data() const { return bytes_.data(); }
  Dtype dtype() const { return dtype_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  uint16_t* codes() { return reinterpret_cast<uint16_t*>(bytes_.data()); }
  const uint16_t* codes() const { return reinterpret_cast<const uint16_t*>(bytes_.data()); }

  float operator[](size_t i) const {
    if (dtype_ == Dtype::kF32) return reinterpret_cast<const float*>(bytes_.data())[i];
    return dtype_ == Dtype::kBF16 ? bf16_decode(codes()[i]) : ue6m10_decode(codes()[i]);
  }
  void set(size_t i, float x) {
    if (dtype_ == Dtype::kF32) {
      reinterpret_cast<float*>(bytes_.data())[i] = x;
    } else {
      codes()[i] = dtype_ == Dtype::kBF16 ? bf16_nearest(x) : ue6m10_nearest(x);
    }
  }

 private:
  Dtype dtype_;
  std::vector<std::byte> bytes_;
};

class Lab {
 public:
  Lab(const AdamwFormat& format, size_t n, float initial_weight = 0, std::string_view name = "w",
      uint64_t seed = 1)
      : format_(format),
        n_(n),
        name_hash_(fnv1a(name)),
        seed_(seed),
        pool_(1),
        weight_(format.weight, n),
        master_(format.master == MasterMode::kSplit ? Dtype::kI16 : Dtype::kF32, n),
        exp_avg_(format.exp_avg, n),
        exp_avg_sq_(format.exp_avg_sq, n) {
    for (size_t i = 0; i < n; ++i) set_weight(i, initial_weight);
  }

  void set_weight(size_t i, float w) {
    weight_.set(i, w);
    if (format_.master == MasterMode::kFp32) master_.set(i, w);
    if (format_.master == MasterMode::kSplit) {
      master_.codes()[i] = static_cast<uint16_t>(split_f32(w).remainder);
    }
  }

  // The FP32 value of the weight, wherever it lives.
  float weight(size_t i) const {
    if (format_.master == MasterMode::kFp32) return master_[i];
    if (format_.master == MasterMode::kSplit) {
      return join_f32(weight_.codes()[i], static_cast<int16_t>(master_.codes()[i]));
    }
    return weight_[i];
  }
  double mean_weight() const {
    double sum = 0;
    for (size_t i = 0; i < n_; ++i) sum += weight(i);
    return sum / static_cast<double>(n_);
  }
  double mean_exp_avg_sq() const {
    double sum = 0;
    for (size_t i = 0; i < n_; ++i) sum += exp_avg_sq_[i];
    return sum / static_cast<double>(n_);
  }

  Array& exp_avg() { return exp_avg_; }
  Array& exp_avg_sq() { return exp_avg_sq_; }
  const Array& stored_weight() const { return weight_; }
  const Array& stored_master() const { return master_; }
  size_t size() const { return n_; }
  int64_t t() const { return t_; }

  // The next step's slice, for the gradients given; valid until the next call.
  const AdamwSlice& next_slice(const float* grad, const AdamwHyperparameters& hyper) {
    const int64_t n = static_cast<int64_t>(n_);
    scalars_ = adamw_scalars(hyper, t_ + 1, 1);
    slice_ = {.weight = weight_.data(),
              .master = master_.data(),
              .grad = grad,
              .exp_avg = exp_avg_.data(),
              .exp_avg_sq = exp_avg_sq_.data(),
              .rows = 1,
              .cols = n,
              .global_cols = n,
              .name_hash = name_hash_,
              .t = t_ + 1,
              .scalars = &scalars_};
    return slice_;
  }
  void step(const std::vector<float>& grad, const AdamwHyperparameters& hyper) {
    adamw_step(format_, {&next_slice(grad.data(), hyper), 1}, seed_, pool_);
    ++t_;
  }
  void steps(int64_t count, float grad, const AdamwHyperparameters& hyper) {
    const std::vector<float> grads(n_, grad);
    for (int64_t i = 0; i < count; ++i) step(grads, hyper);
  }

 private:
  AdamwFormat format_;
  size_t n_;
  uint64_t name_hash_, seed_;
  ThreadPool pool_;
  Array weight_, master_, exp_avg_, exp_avg_sq_;
  int64_t t_ = 0;
  AdamwScalars scalars_;
  AdamwSlice slice_;
};

}  // namespace halfstep::kernels
