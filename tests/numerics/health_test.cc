// Rounding health (docs/numerics.md §8): `lost` tells a state that moves from one that stalls,
// which counting unchanged codes cannot.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "lab.h"

namespace halfstep::kernels {
namespace {

constexpr size_t kN = 1 << 20;

AdamwFormat format_of(Dtype exp_avg_sq, Rounding rounding) {
  return {.exp_avg_sq = exp_avg_sq, .exp_avg_sq_rounding = rounding};
}

// n elements whose exp_avg_sq is what random gradients of variance 1 settle at, and such gradients.
struct Settled {
  Lab lab;
  std::vector<float> grad;

  Settled(const AdamwFormat& format, double beta2, size_t n = kN) : lab(format, n, 1.0f), grad(n) {
    std::mt19937 gen(11);
    std::normal_distribution<float> normal;
    const float sigma = static_cast<float>(std::sqrt(2 * (1 - beta2) / (1 + beta2)));
    std::vector<float> v(n);
    for (size_t i = 0; i < n; ++i) {
      v[i] = std::max(0.1f, 1 + sigma * normal(gen));
      grad[i] = normal(gen);
    }
    for (size_t i = 0; i < n; ++i) lab.exp_avg_sq().set(i, v[i]);
  }
};

// The health of the next step, added up over `seeds` seeds: rounding_health only reads.
RoundingHealth health_of(Settled& s, const AdamwFormat& format, double beta2, uint64_t seeds) {
  ThreadPool pool(1);
  RoundingHealth total;
  const AdamwSlice& slice = s.lab.next_slice(s.grad.data(), {.beta2 = beta2});
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    total += rounding_health(format, {&slice, 1}, seed, pool);
  }
  return total;
}

// σ of 1 − moved/exact for unbiased rounding: each rounding has the variance of at most
// |exact − stored| · step, and steps are at most 2^-M · v with v near 1 (below 2 at any rate:
// 2^-M).
double sigma_of_lost(const RoundingHealth::Flow& flow, Dtype dtype) {
  const double step = std::ldexp(1.0, -mantissa_bits(dtype));
  return std::sqrt(step / std::fabs(flow.exact));
}

TEST(Health, NothingIsLostByUnbiasedRounding) {
  struct Case {
    Dtype dtype;
    double beta2;
    Rounding rounding;
  };
  for (const Case& c : {Case{Dtype::kBF16, 0.95, Rounding::kNearest},
                        Case{Dtype::kBF16, 0.99, Rounding::kStochastic},
                        Case{Dtype::kBF16, 0.999, Rounding::kStochastic},
                        Case{Dtype::kUE6M10, 0.99, Rounding::kNearest},
                        Case{Dtype::kUE6M10, 0.999, Rounding::kStochastic},
                        Case{Dtype::kUE6M10, 0.9999, Rounding::kStochastic}}) {
    const AdamwFormat format = format_of(c.dtype, c.rounding);
    Settled settled(format, c.beta2);
    const RoundingHealth h =
        health_of(settled, format, c.beta2, c.rounding == Rounding::kStochastic ? 32 : 1);
    for (const RoundingHealth::Flow& flow : {h.exp_avg_sq_down, h.exp_avg_sq_up}) {
      EXPECT_GT(flow.count, 1000);
      EXPECT_NEAR(1 - flow.moved / flow.exact, 0, 4 * sigma_of_lost(flow, c.dtype))
          << dtype_name(c.dtype) << c.beta2;
    }
    EXPECT_LT(h.lost_exp_avg_sq(), 0.1);
    EXPECT_EQ(h.lost_weight(), 0);  // the master holds it
  }
}

TEST(Health, EverythingIsLostWhereNearestStalls) {
  const AdamwFormat format = format_of(Dtype::kBF16, Rounding::kNearest);
  for (double beta2 : {0.999, 0.9999}) {
    Settled settled(format, beta2);
    const RoundingHealth h = health_of(settled, format, beta2, 1);
    // No step down is as large as half a step of the grid, 2^-9 · v: none moves at all.
    EXPECT_EQ(h.exp_avg_sq_down.moved, 0);
    EXPECT_DOUBLE_EQ(h.lost_exp_avg_sq(), 1);
  }
  // Between the two, a part: .095 was measured downwards on one machine's trial.
  Settled settled(format, 0.99);
  const RoundingHealth h = health_of(settled, format, 0.99, 1);
  const double lost_down = 1 - h.exp_avg_sq_down.moved / h.exp_avg_sq_down.exact;
  EXPECT_NEAR(lost_down, 0.095, 0.02 + 4 * sigma_of_lost(h.exp_avg_sq_down, Dtype::kBF16));
}

TEST(Health, SeesWeightsWithoutAMaster) {
  const AdamwFormat format{.master = MasterMode::kNone};
  Settled settled(format, 0.999);
  const RoundingHealth h = health_of(settled, format, 0.999, 32);
  const double moved = h.weight_up.moved + h.weight_down.moved;
  const double exact = std::fabs(h.weight_up.exact) + std::fabs(h.weight_down.exact);
  EXPECT_GT(exact, 0);
  EXPECT_NEAR(h.lost_weight(), 0,
              4 * sigma_of_lost(h.weight_down, Dtype::kBF16) +
                  4 * sigma_of_lost(h.weight_up, Dtype::kBF16));
  EXPECT_NE(moved, 0);
}

// One block in 64, the same ones however the parameter is cut, and nothing is written.
TEST(Health, SamplesTheSameElementsHoweverCut) {
  const AdamwFormat format = format_of(Dtype::kBF16, Rounding::kStochastic);
  constexpr int64_t kRows = 1 << 10, kCols = 1 << 10;
  Settled settled(format, 0.999);
  const std::vector<std::byte> before = settled.lab.exp_avg_sq().bytes();
  ThreadPool one(1), three(3);
  const AdamwSlice flat = settled.lab.next_slice(settled.grad.data(), {.beta2 = 0.999});
  const RoundingHealth whole = rounding_health(format, {&flat, 1}, 5, one);
  EXPECT_EQ(whole.sampled, static_cast<int64_t>(kN / 64));
  EXPECT_EQ(whole.nonzero, whole.sampled);
  EXPECT_EQ(whole.small, 0);
  EXPECT_EQ(settled.lab.exp_avg_sq().bytes(), before);

  const auto expect_same = [&](const RoundingHealth& h) {
    EXPECT_EQ(h.sampled, whole.sampled);
    EXPECT_EQ(h.exp_avg_sq_down.count, whole.exp_avg_sq_down.count);
    // Some 10^4 differences of BF16 values between 1/16 and 2, multiples of 2^-11: FP64 adds them
    // up exactly in any order.
    EXPECT_EQ(h.exp_avg_sq_down.moved, whole.exp_avg_sq_down.moved);
  };
  expect_same(rounding_health(format, {&flat, 1}, 5, three));

  std::vector<AdamwSlice> rows;
  for (auto [begin, end] : {std::pair<int64_t, int64_t>{0, 333}, {333, 334}, {334, kRows}}) {
    AdamwSlice s = flat;
    s.weight = static_cast<uint16_t*>(flat.weight) + begin * kCols;
    s.master = static_cast<float*>(flat.master) + begin * kCols;
    s.grad = static_cast<const float*>(flat.grad) + begin * kCols;
    s.exp_avg = static_cast<float*>(flat.exp_avg) + begin * kCols;
    s.exp_avg_sq = static_cast<uint16_t*>(flat.exp_avg_sq) + begin * kCols;
    s.rows = end - begin;
    s.cols = s.global_cols = kCols;
    s.global_row0 = begin;
    rows.push_back(s);
  }
  expect_same(rounding_health(format, rows, 5, one));
}

// Values over 48 octaves, whose sums round differently in every order.
TEST(Health, SumsHaveTheSameBitsForAnyNumberOfThreads) {
  const AdamwFormat format = format_of(Dtype::kF32, Rounding::kNearest);
  Settled settled(format, 0.999);
  for (size_t i = 0; i < kN; ++i) {
    const int octaves = static_cast<int>(i * 7 % 48);
    settled.grad[i] = std::ldexp(settled.grad[i], -octaves);
    settled.lab.exp_avg_sq().set(i, std::ldexp(settled.lab.exp_avg_sq()[i], -2 * octaves));
  }
  const AdamwSlice slice = settled.lab.next_slice(settled.grad.data(), {.beta2 = 0.999});
  ThreadPool one(1), three(3);
  const RoundingHealth a = rounding_health(format, {&slice, 1}, 5, one);
  const RoundingHealth b = rounding_health(format, {&slice, 1}, 5, three);
  EXPECT_NE(a.exp_avg_sq_down.exact, 0);
  EXPECT_NE(a.exp_avg_sq_up.exact, 0);
  EXPECT_EQ(a.exp_avg_sq_down.exact, b.exp_avg_sq_down.exact);
  EXPECT_EQ(a.exp_avg_sq_down.moved, b.exp_avg_sq_down.moved);
  EXPECT_EQ(a.exp_avg_sq_up.exact, b.exp_avg_sq_up.exact);
  EXPECT_EQ(a.exp_avg_sq_up.moved, b.exp_avg_sq_up.moved);
}

// Every eighth column group of a matrix is met about equally often.
TEST(Health, SamplesAllColumnsAlike) {
  const AdamwFormat format = format_of(Dtype::kF32, Rounding::kNearest);
  Settled settled(format, 0.999);
  const AdamwSlice flat = settled.lab.next_slice(settled.grad.data(), {});
  ThreadPool pool(1);
  for (int64_t column = 0; column < 512; column += 64) {
    AdamwSlice s = flat;
    s.rows = static_cast<int64_t>(kN / 512);
    s.cols = 64;
    s.global_col0 = column;
    s.global_cols = 512;
    const double sampled =
        static_cast<double>(rounding_health(format, {&s, 1}, 5, pool).sampled) / 8;
    // 2048 rows, each with one sampled block of which an eighth lies here.
    EXPECT_NEAR(sampled, 256, 4 * std::sqrt(2048 * 0.125 * 0.875)) << column;
  }
}

TEST(Health, CountsSmallValuesAndLeavesOutWhatIsNotFinite) {
  const AdamwFormat format = format_of(Dtype::kUE6M10, Rounding::kStochastic);
  Settled settled(format, 0.999, 512 * 8);
  for (size_t i = 0; i < settled.grad.size(); ++i) {
    settled.grad[i] = 0;
    settled.lab.exp_avg_sq().set(i, i % 2 ? 0x1p-55f : 0);
  }
  RoundingHealth h = health_of(settled, format, 0.999, 1);
  EXPECT_EQ(h.sampled, 64);
  EXPECT_EQ(h.nonzero, 32);
  EXPECT_EQ(h.small, 32);
  for (float& g : settled.grad) g = NAN;
  h = health_of(settled, format, 0.999, 1);
  EXPECT_EQ(h.exp_avg_sq_up.count + h.exp_avg_sq_down.count, 0);
  EXPECT_EQ(h.lost_exp_avg_sq(), 0);
}

}  // namespace
}  // namespace halfstep::kernels
