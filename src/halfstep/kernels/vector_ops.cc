// The drivers of the other passes: checks and threads. The arithmetic is in the kernel tables.
#include "halfstep/kernels/vector_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>

#include "halfstep/core/error.h"
#include "halfstep/kernels/chunks.h"
#include "halfstep/kernels/kernel_table.h"
#include "halfstep/kernels/slice_runs.h"

namespace halfstep::kernels {
namespace {

bool is_fp32_or_bf16(Dtype dtype) { return dtype == Dtype::kF32 || dtype == Dtype::kBF16; }

void check_noise(const NoiseRun& noise, int64_t n) {
  check_noise_range(noise.first, n);
  if (noise.stream.micro_step > 0xFFFF) {
    throw UsageError(fmt::format(
        "kernels: micro-batch {} of a global batch, expected at most 65535 (its noise is addressed "
        "by 16 bits)",
        noise.stream.micro_step));
  }
}

// Adds numbers up in a tree over their positions: the left subtree of n numbers holds the largest
// power of two below n, the right one the rest. Streaming, as a binary counter: level k holds the
// sum of a complete group of 2^k numbers while bit k of the count is set.
class PairwiseSum {
 public:
  void add(double value) {
    int level = 0;
    for (; count_ >> level & 1; ++level) value = levels_[level] + value;
    levels_[level] = value;
    ++count_;
  }

  double total() const {
    double sum = 0;
    bool any = false;
    for (int level = 0; count_ >> level; ++level) {
      if (count_ >> level & 1) {
        sum = any ? levels_[level] + sum : levels_[level];
        any = true;
      }
    }
    return sum;
  }

 private:
  std::array<double, 63> levels_;
  int64_t count_ = 0;
};

}  // namespace

void convert(void* dst, Dtype dst_dtype, const void* src, Dtype src_dtype, int64_t n,
             Rounding rounding, const NoiseRun& noise, ThreadPool& pool) {
  check(dst_dtype == src_dtype || dst_dtype == Dtype::kF32 || src_dtype == Dtype::kF32,
        "kernels: convert between two 16-bit formats");
  check(dst_dtype != Dtype::kI16 && src_dtype != Dtype::kI16, "kernels: convert of int16");
  check_noise(noise, n);
  const KernelTable& table = current_table();
  for_each_chunk(pool, n, [&](int64_t begin, int64_t count) {
    if (dst_dtype == src_dtype) {  // a copy keeps every bit, NaNs' too
      std::memcpy(advance(dst, dst_dtype, begin), advance(src, src_dtype, begin),
                  static_cast<size_t>(count * dtype_bytes(dst_dtype)));
      return;
    }
    table.convert(advance(dst, dst_dtype, begin), dst_dtype, advance(src, src_dtype, begin),
                  src_dtype, count, rounding, advanced(noise, begin));
  });
}

void accumulate(void* dst, Dtype dst_dtype, const void* src, Dtype src_dtype, int64_t n,
                Rounding rounding, const NoiseRun& noise, ThreadPool& pool) {
  check(is_fp32_or_bf16(dst_dtype) && is_fp32_or_bf16(src_dtype),
        "kernels: accumulate takes fp32 and bf16");
  check_noise(noise, n);
  const KernelTable& table = current_table();
  for_each_chunk(pool, n, [&](int64_t begin, int64_t count) {
    table.accumulate(advance(dst, dst_dtype, begin), dst_dtype, advance(src, src_dtype, begin),
                     src_dtype, count, rounding, advanced(noise, begin));
  });
}

// A task is a complete subtree of kRunsPerTask runs, so its sum does not depend on how many tasks
// there are. Tasks go in waves whose sums fit on the stack and are added up in order.
double sum_squares(const void* x, Dtype dtype, int64_t n, ThreadPool& pool) {
  check(is_fp32_or_bf16(dtype), "kernels: sum_squares takes fp32 and bf16");
  constexpr int64_t kRunsPerTask = 64, kTasksPerWave = 1024;
  static_assert((kRunsPerTask & (kRunsPerTask - 1)) == 0, "a task must be a complete subtree");
  constexpr int64_t kTaskElements = kRunsPerTask * kSumSquaresRun;
  const KernelTable& table = current_table();
  const int64_t tasks = (n + kTaskElements - 1) / kTaskElements;
  PairwiseSum total;
  std::array<double, kTasksPerWave> task_sums;
  for (int64_t wave = 0; wave < tasks; wave += kTasksPerWave) {
    const int64_t in_wave = std::min(kTasksPerWave, tasks - wave);
    pool.parallel_for(in_wave, [&](int64_t i) {
      const KernelFpEnvironment environment;
      const int64_t begin = (wave + i) * kTaskElements, end = std::min(begin + kTaskElements, n);
      PairwiseSum sum;
      for (int64_t run = begin; run < end; run += kSumSquaresRun) {
        sum.add(table.sum_squares_run(advance(x, dtype, run), dtype,
                                      std::min(kSumSquaresRun, end - run)));
      }
      task_sums[static_cast<size_t>(i)] = sum.total();
    });
    for (int64_t i = 0; i < in_wave; ++i) total.add(task_sums[static_cast<size_t>(i)]);
  }
  return total.total();
}

void sum_ranks(float* dst, std::span<const void* const> contributions, Dtype dtype, int64_t n,
               ThreadPool& pool) {
  check(!contributions.empty(), "kernels: sum_ranks of no ranks");
  check(is_fp32_or_bf16(dtype), "kernels: sum_ranks takes fp32 and bf16");
  const KernelTable& table = current_table();
  for_each_chunk(pool, n, [&](int64_t begin, int64_t count) {
    table.sum_ranks(dst, contributions, dtype, begin, count);
  });
}

int64_t split_master(uint16_t* weight, int16_t* remainder, const float* master, int64_t n,
                     ThreadPool& pool) {
  const KernelTable& table = current_table();
  std::atomic<int64_t> lost{0};
  for_each_chunk(pool, n, [&](int64_t begin, int64_t count) {
    lost.fetch_add(table.split(weight + begin, remainder + begin, master + begin, count),
                   std::memory_order_relaxed);
  });
  return lost.load();
}

void join_master(float* master, const uint16_t* weight, const int16_t* remainder, int64_t n,
                 ThreadPool& pool) {
  const KernelTable& table = current_table();
  for_each_chunk(pool, n, [&](int64_t begin, int64_t count) {
    table.join(master + begin, weight + begin, remainder + begin, count);
  });
}

void init_normal(void* dst, Dtype dtype, int64_t n, double std, const NoiseRun& noise,
                 ThreadPool& pool) {
  check(is_fp32_or_bf16(dtype), "kernels: init_normal writes fp32 and bf16");
  check(noise.stream.purpose == NoisePurpose::kInit && noise.stream.step == 0,
        "kernels: init_normal takes noise of purpose init, step 0");
  if (!std::isfinite(std) || std < 0) {
    throw UsageError(fmt::format("kernels: initial weights with standard deviation {}", std));
  }
  // Every element takes a whole block, so elements themselves stay below 2^48.
  if (n < 0 || noise.first < 0 || noise.first > kMaxElements / 8 - n) {
    throw UsageError(
        fmt::format("kernels: initial weights of {} elements from {}, expected a range "
                    "in [0, 2^48)",
                    n, noise.first));
  }
  const KernelTable& table = current_table();
  for_each_chunk(pool, n, [&](int64_t begin, int64_t count) {
    table.init_normal(advance(dst, dtype, begin), dtype, count, std, advanced(noise, begin));
  });
}

}  // namespace halfstep::kernels
