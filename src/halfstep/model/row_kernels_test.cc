// The row kernels against the same formulas in FP64, at widths with and without ragged ends.
//
// Tolerances: FP32 storage: each output is a handful of operations on values near 1 and one sum of
// n ≤ 200 terms in 8 or more lanes: (200/8 + 10)·2⁻²⁴ ≈ 2e-6 of the largest magnitude. BF16 storage
// rounds each output once more: 2⁻⁸ of it.
#include "halfstep/model/row_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "halfstep/core/bf16.h"

namespace halfstep::model {
namespace {

constexpr double kFp32 = 2e-6;

std::vector<float> random_values(size_t n, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& v : values) v = bf16_decode(bf16_nearest(normal(generator)));
  return values;
}

std::vector<Bf16> narrow(const std::vector<float>& values) {
  std::vector<Bf16> result;
  for (const float v : values) result.push_back({bf16_nearest(v)});
  return result;
}

void expect_near(const std::vector<float>& got, const std::vector<double>& expected) {
  double largest = 1;
  for (const double v : expected) largest = std::max(largest, std::abs(v));
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], kFp32 * largest) << i;
}

// The BF16 variant must give the FP32 variant's result, rounded to nearest.
void expect_rounded(const std::vector<Bf16>& got, const std::vector<float>& exact) {
  for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i].bits, bf16_nearest(exact[i])) << i;
}

class Widths : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(RowKernels, Widths, ::testing::Values(2, 6, 8, 30, 32, 46, 64, 200));

TEST_P(Widths, RmsNorm) {
  const int64_t n = GetParam(), rows = 3;
  const auto x = random_values(rows * n, 1), w = random_values(n, 2),
             g = random_values(rows * n, 3), res = random_values(rows * n, 4);
  std::vector<float> y(rows * n), inv(rows), gx(rows * n), gw(n, 0.5f);
  rms_norm_rows(x.data(), w.data(), 1e-5, rows, n, y.data(), inv.data());
  rms_norm_backward_rows(x.data(), w.data(), inv.data(), g.data(), res.data(), rows, n, gx.data(),
                         gw.data());
  std::vector<double> ey(rows * n), egx(rows * n), egw(n, 0.5);
  for (int64_t r = 0; r < rows; ++r) {
    double squares = 0, dot = 0;
    for (int64_t i = 0; i < n; ++i) squares += static_cast<double>(x[r * n + i]) * x[r * n + i];
    const double s = 1 / std::sqrt(squares / n + 1e-5);
    for (int64_t i = 0; i < n; ++i) dot += static_cast<double>(w[i]) * g[r * n + i] * x[r * n + i];
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = r * n + i;
      ey[at] = x[at] * s * w[i];
      egx[at] = res[at] + s * w[i] * g[at] - x[at] * s * s * s * dot / n;
      egw[i] += g[at] * x[at] * s;
    }
  }
  expect_near(y, ey);
  expect_near(gx, egx);
  expect_near(gw, egw);

  std::vector<Bf16> narrow_y(rows * n);
  rms_norm_rows(narrow(x).data(), w.data(), 1e-5, rows, n, narrow_y.data(), inv.data());
  expect_rounded(narrow_y, y);
}

TEST_P(Widths, Swiglu) {
  const int64_t n = GetParam(), rows = 3;
  const auto x = random_values(2 * rows * n, 5), g = random_values(rows * n, 6);
  std::vector<float> y(rows * n), gx(2 * rows * n);
  swiglu_rows(x.data(), rows, n, y.data());
  swiglu_backward_rows(x.data(), g.data(), rows, n, gx.data());
  std::vector<double> ey(rows * n), egx(2 * rows * n);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < n; ++i) {
      const double gate = x[2 * r * n + i], up = x[2 * r * n + n + i], dy = g[r * n + i];
      const double s = 1 / (1 + std::exp(-gate));
      ey[r * n + i] = gate * s * up;
      egx[2 * r * n + i] = dy * up * (s + gate * s * (1 - s));
      egx[2 * r * n + n + i] = dy * gate * s;
    }
  }
  expect_near(y, ey);
  expect_near(gx, egx);
  std::vector<Bf16> narrow_y(rows * n);
  swiglu_rows(narrow(x).data(), rows, n, narrow_y.data());
  expect_rounded(narrow_y, y);
}

TEST_P(Widths, RotationWithoutNormIsUndoneByItsGradient) {
  const int64_t dim = GetParam(), half = dim / 2, rows = 4, heads = 3;
  const std::vector<int64_t> positions{0, 5, 2, 5};
  std::vector<float> cos(6 * half), sin(6 * half);
  for (int64_t i = 0; i < 6 * half; ++i) {
    cos[i] = std::cos(0.1f * i);
    sin[i] = std::sin(0.1f * i);
  }
  const HeadRows h{.heads = heads,
                   .head_dim = dim,
                   .row_stride = heads * dim,
                   .positions = positions.data(),
                   .cos = cos.data(),
                   .sin = sin.data()};
  const auto x = random_values(rows * heads * dim, 7);
  std::vector<float> out(x.size()), back(x.size());
  rotate_heads(h, x.data(), rows, out.data(), nullptr);
  const float expected = x[heads * dim] * cos[5 * half] - x[heads * dim + half] * sin[5 * half];
  EXPECT_NEAR(out[heads * dim], expected, 1e-6);
  rotate_heads_backward(h, x.data(), nullptr, out.data(), rows, back.data(), nullptr);
  expect_near(back, std::vector<double>(x.begin(), x.end()));
}

TEST_P(Widths, CrossEntropy) {
  const int64_t n = GetParam(), rows = 3;
  auto logits = random_values(rows * n, 8);
  for (int64_t i = 0; i < n; ++i) logits[i] += 500;  // exp alone would overflow
  const std::vector<int64_t> targets{1, -100, 0};
  std::vector<float> lse(rows);
  log_sum_exp_rows(logits.data(), rows, n, lse.data());
  std::vector<double> expected_lse, expected_gradient;
  for (int64_t r = 0; r < rows; ++r) {
    const double shift = r == 0 ? 500 : 0;
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += std::exp(logits[r * n + i] - shift);
    expected_lse.push_back(std::log(sum) + shift);
    for (int64_t i = 0; i < n; ++i) {
      const double p = std::exp(logits[r * n + i] - expected_lse.back());
      expected_gradient.push_back(targets[r] < 0 ? 0 : 0.5 * (p - (i == targets[r])));
    }
  }
  expect_near(lse, expected_lse);
  cross_entropy_gradient_rows(logits.data(), lse.data(), targets.data(), 0.5f, rows, n);
  // The stored lse is rounded: 2⁻²⁴ · 500 of the exponent.
  for (size_t i = 0; i < logits.size(); ++i)
    ASSERT_NEAR(logits[i], expected_gradient[i], 3e-5) << i;
}

TEST(RowKernels, NonFiniteLogitsMakeTheLossNonFinite) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const int64_t place : {0, 7, 17}) {
      std::vector<float> logits(18, 0.0f);
      logits[place] = bad;
      float lse = 0;
      log_sum_exp_rows(logits.data(), 1, 18, &lse);
      EXPECT_FALSE(std::isfinite(lse)) << bad << " at " << place;
    }
  }
}

// silu over the whole range: no overflow on either side, NaN stays NaN.
TEST(RowKernels, SiluAtTheEnds) {
  const std::vector<float> gates{-1e30f, -200, -90, -1e-30f, 0, 1e-30f, 90, 200, 1e30f};
  for (const float gate : gates) {
    const std::vector<float> x{gate, 1};
    float y = 0;
    swiglu_rows(x.data(), 1, 1, &y);
    const double expected = gate / (1 + std::exp(-static_cast<double>(gate)));
    EXPECT_NEAR(y, expected, 1e-6 * std::abs(expected) + 1e-35) << gate;
  }
  const std::vector<float> x{std::numeric_limits<float>::quiet_NaN(), 1};
  float y = 0;
  swiglu_rows(x.data(), 1, 1, &y);
  EXPECT_TRUE(std::isnan(y));
}

}  // namespace
}  // namespace halfstep::model
