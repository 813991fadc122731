// Every FP32 pattern through every codec: the scalar functions of core against exact arithmetic,
// and the kernels in use against the scalar functions (docs/numerics.md §9.1, §9.2). Label nightly.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <vector>

#include "halfstep/core/bf16.h"
#include "halfstep/core/codec_oracle.h"
#include "halfstep/core/split_weight.h"
#include "halfstep/core/thread_pool.h"
#include "halfstep/core/ue6m10.h"
#include "halfstep/kernels/vector_ops.h"

namespace halfstep::kernels {
namespace {

constexpr int64_t kBlock = 1 << 16;  // all lower halves of one upper half

const NoiseRun kNoise{.stream = {.seed = 5, .name_hash = 6, .step = 7}};

// body(upper half, the 65 536 values that have it, a pool of one thread); returns its failures. The
// first few are reported.
template <typename Body>
void for_each_upper_half(Body&& body) {
  std::atomic<int64_t> failures{0};
  ThreadPool::global().parallel_for(kBlock, [&](int64_t hi) {
    thread_local ThreadPool pool(1);
    thread_local std::vector<float> x(kBlock);
    for (uint32_t lo = 0; lo < kBlock; ++lo) {
      x[lo] = std::bit_cast<float>(static_cast<uint32_t>(hi) << 16 | lo);
    }
    const int64_t failed = body(x, pool);
    if (failed && failures.fetch_add(failed) < 10) {
      ADD_FAILURE() << failed << " values with the upper half " << std::hex << hi;
    }
  });
  EXPECT_EQ(failures.load(), 0);
}

// Codes of a kernel for the values, with the noise address 0, 1, ….
std::vector<uint16_t> converted(const std::vector<float>& x, Dtype dtype, Rounding rounding,
                                ThreadPool& pool) {
  std::vector<uint16_t> codes(kBlock);
  convert(codes.data(), dtype, x.data(), Dtype::kF32, kBlock, rounding, kNoise, pool);
  return codes;
}

std::vector<uint32_t> noise() {
  std::vector<uint32_t> r(kBlock);
  for (int64_t i = 0; i < kBlock; ++i) r[static_cast<size_t>(i)] = kNoise.stream.bits16(i);
  return r;
}

bool same_bf16(uint16_t a, uint16_t b) {
  return a == b || (std::isnan(bf16_decode(a)) && std::isnan(bf16_decode(b)));
}

TEST(Exhaustive, Bf16) {
  const std::vector<uint32_t> r = noise();
  for_each_upper_half([&](const std::vector<float>& x, ThreadPool& pool) {
    const auto nearest = converted(x, Dtype::kBF16, Rounding::kNearest, pool);
    const auto stochastic = converted(x, Dtype::kBF16, Rounding::kStochastic, pool);
    int64_t failed = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      failed += bf16_nearest(x[i]) != oracle::bf16_nearest(std::bit_cast<uint32_t>(x[i]));
      failed += !same_bf16(nearest[i], bf16_nearest(x[i]));
      failed += !same_bf16(stochastic[i], bf16_stochastic(x[i], r[i]));
    }
    return failed;
  });
}

// The largest code not above x, for finite x ≥ 0, proved by decoding it and its neighbour.
uint16_t checked_floor(float x, int64_t& failed) {
  const uint16_t below = ue6m10_stochastic(x, 0);
  failed += ue6m10_decode(below) > x;
  failed += below != kUe6m10Max && ue6m10_decode(static_cast<uint16_t>(below + 1)) <= x;
  return below;
}

TEST(Exhaustive, Ue6m10) {
  const std::vector<uint32_t> r = noise();
  for_each_upper_half([&](const std::vector<float>& x, ThreadPool& pool) {
    const auto nearest = converted(x, Dtype::kUE6M10, Rounding::kNearest, pool);
    const auto stochastic = converted(x, Dtype::kUE6M10, Rounding::kStochastic, pool);
    int64_t failed = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      if (std::isfinite(x[i]) && x[i] >= 0) {
        const uint16_t below = checked_floor(x[i], failed);
        failed += ue6m10_nearest(x[i]) != oracle::ue6m10_nearest(x[i], below);
      } else {
        failed += ue6m10_nearest(x[i]) != kUe6m10NaN;
      }
      failed += nearest[i] != ue6m10_nearest(x[i]);
      failed += stochastic[i] != ue6m10_stochastic(x[i], r[i]);
    }
    return failed;
  });
}

TEST(Exhaustive, SplitAndJoin) {
  std::atomic<int64_t> ties{0};
  for_each_upper_half([&](const std::vector<float>& x, ThreadPool& pool) {
    std::vector<uint16_t> weight(kBlock);
    std::vector<int16_t> remainder(kBlock);
    std::vector<float> joined(kBlock);
    ties += split_master(weight.data(), remainder.data(), x.data(), kBlock, pool);
    join_master(joined.data(), weight.data(), remainder.data(), kBlock, pool);
    int64_t failed = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const uint32_t bits = std::bit_cast<uint32_t>(x[i]);
      const SplitWeight scalar = split_f32(x[i]);
      failed += !same_bf16(weight[i], bf16_nearest(x[i]));
      failed += remainder[i] != scalar.remainder;
      if (std::isnan(x[i])) {
        failed += !std::isnan(joined[i]) || scalar.lost_ulp;
      } else {
        const bool tie = (bits & 0x1FFFF) == 0x8000;
        failed += scalar.lost_ulp != tie || std::bit_cast<uint32_t>(joined[i]) != bits - tie;
      }
    }
    return failed;
  });
  EXPECT_EQ(ties.load(), 0x7F80);
}

}  // namespace
}  // namespace halfstep::kernels
