// The step through its public entry, against docs/numerics.md §2 written once more for one element.
#include "halfstep/kernels/adamw.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "halfstep/core/bf16.h"
#include "halfstep/core/error.h"
#include "halfstep/core/hash.h"
#include "halfstep/core/philox.h"
#include "halfstep/core/split_weight.h"
#include "halfstep/core/ue6m10.h"

namespace halfstep::kernels {
namespace {

constexpr uint64_t kSeed = 0x0123456789abcdef;

// The tensors of one parameter, all formats side by side as raw codes (FP32 as its bits).
struct Element {
  uint32_t weight, master, grad, exp_avg, exp_avg_sq, max_exp_avg_sq;
  friend bool operator==(const Element&, const Element&) = default;
};

uint32_t encode(float x, Dtype dtype, Rounding rounding, uint32_t r) {
  const bool nearest = rounding == Rounding::kNearest;
  if (dtype == Dtype::kF32) return std::bit_cast<uint32_t>(x);
  if (dtype == Dtype::kBF16) return nearest ? bf16_nearest(x) : bf16_stochastic(x, r);
  return nearest ? ue6m10_nearest(x) : ue6m10_stochastic(x, r);
}

float decode(uint32_t code, Dtype dtype) {
  if (dtype == Dtype::kF32) return std::bit_cast<float>(code);
  const auto half = static_cast<uint16_t>(code);
  return dtype == Dtype::kBF16 ? bf16_decode(half) : ue6m10_decode(half);
}

Element expected_step(const AdamwFormat& f, const AdamwScalars& k, Element e, int64_t address,
                      int64_t t, uint64_t name_hash) {
  const auto noise = [&](NoisePurpose purpose) {
    return NoiseStream{.seed = kSeed, .name_hash = name_hash, .step = t, .purpose = purpose}.bits16(
        address);
  };
  float w = f.master == MasterMode::kFp32 ? std::bit_cast<float>(e.master)
            : f.master == MasterMode::kSplit
                ? join_f32(static_cast<uint16_t>(e.weight), static_cast<int16_t>(e.master))
                : decode(e.weight, f.weight);
  const float g = k.s * decode(e.grad, f.grad);
  const float m0 = decode(e.exp_avg, f.exp_avg);
  const float m = m0 + k.c1 * (g - m0);
  const float v = k.b2 * decode(e.exp_avg_sq, f.exp_avg_sq) + k.c2 * (g * g);
  float second = v;
  if (f.amsgrad) {
    const float u = decode(e.max_exp_avg_sq, f.exp_avg_sq);
    second = v > u || std::isnan(v) ? v : u;
    e.max_exp_avg_sq = encode(second, f.exp_avg_sq, Rounding::kNearest, 0);
  }
  const float d = std::sqrt(second) * k.r + k.eps;
  w = w - (k.a * (m / d) + k.q * w);
  switch (f.master) {
    case MasterMode::kFp32:
      e.master = std::bit_cast<uint32_t>(w);
      e.weight = bf16_nearest(w);
      break;
    case MasterMode::kSplit: {
      const SplitWeight s = split_f32(w);
      e.weight = s.weight;
      e.master = static_cast<uint16_t>(s.remainder);
      break;
    }
    case MasterMode::kNone:
      e.weight = encode(w, f.weight, Rounding::kStochastic, noise(NoisePurpose::kWeight));
      break;
  }
  e.exp_avg = encode(m, f.exp_avg, f.exp_avg_rounding, noise(NoisePurpose::kExpAvg));
  e.exp_avg_sq = encode(v, f.exp_avg_sq, f.exp_avg_sq_rounding, noise(NoisePurpose::kExpAvgSq));
  return e;
}

// One array in its own dtype, filled from and read back to codes.
class Tensor {
 public:
  Tensor(Dtype dtype, size_t n)
      : dtype_(dtype), bytes_(n * static_cast<size_t>(dtype_bytes(dtype))) {}
  void set(size_t i, uint32_t code) { std::memcpy(at(i), &code, size()); }
  uint32_t get(size_t i) {
    uint32_t code = 0;
    std::memcpy(&code, at(i), size());
    return code;
  }
  void* data() { return bytes_.data(); }

 private:
  size_t size() const { return static_cast<size_t>(dtype_bytes(dtype_)); }
  std::byte* at(size_t i) { return bytes_.data() + i * size(); }
  Dtype dtype_;
  std::vector<std::byte> bytes_;
};

struct Parameter {
  Tensor weight, master, grad, exp_avg, exp_avg_sq, max_exp_avg_sq;

  Parameter(const AdamwFormat& f, size_t n)
      : weight(f.weight, n),
        master(f.master == MasterMode::kSplit ? Dtype::kI16 : Dtype::kF32, n),
        grad(f.grad, n),
        exp_avg(f.exp_avg, n),
        exp_avg_sq(f.exp_avg_sq, n),
        max_exp_avg_sq(f.exp_avg_sq, n) {}
  void set(size_t i, const Element& e) {
    weight.set(i, e.weight);
    master.set(i, e.master);
    grad.set(i, e.grad);
    exp_avg.set(i, e.exp_avg);
    exp_avg_sq.set(i, e.exp_avg_sq);
    max_exp_avg_sq.set(i, e.max_exp_avg_sq);
  }
  Element get(size_t i) {
    return {weight.get(i),  master.get(i),     grad.get(i),
            exp_avg.get(i), exp_avg_sq.get(i), max_exp_avg_sq.get(i)};
  }
  AdamwSlice slice(int64_t n, const AdamwScalars& scalars) {
    return {.weight = weight.data(),
            .master = master.data(),
            .grad = grad.data(),
            .exp_avg = exp_avg.data(),
            .exp_avg_sq = exp_avg_sq.data(),
            .max_exp_avg_sq = max_exp_avg_sq.data(),
            .rows = 1,
            .cols = n,
            .global_cols = n,
            .name_hash = fnv1a("w"),
            .t = 7,
            .scalars = &scalars};
  }
};

std::vector<AdamwFormat> all_formats() {
  std::vector<AdamwFormat> formats;
  const std::pair<Dtype, MasterMode> weights[] = {{Dtype::kBF16, MasterMode::kFp32},
                                                  {Dtype::kBF16, MasterMode::kSplit},
                                                  {Dtype::kBF16, MasterMode::kNone},
                                                  {Dtype::kF32, MasterMode::kNone}};
  for (auto [weight, master] : weights) {
    for (Dtype grad : {Dtype::kF32, Dtype::kBF16}) {
      for (Dtype m : {Dtype::kF32, Dtype::kBF16}) {
        for (Dtype v : {Dtype::kF32, Dtype::kBF16, Dtype::kUE6M10}) {
          for (int rounding = 0; rounding < 4; ++rounding) {
            for (bool amsgrad : {false, true}) {
              formats.push_back({weight, master, grad, m, v, Rounding(rounding / 2),
                                 Rounding(rounding % 2), amsgrad});
            }
          }
        }
      }
    }
  }
  return formats;
}

TEST(AdamwStep, EveryFormatEqualsTheFormulaElementByElement) {
  constexpr size_t kN = 1100;  // three tiles, the last one ragged
  const AdamwScalars scalars = adamw_scalars(
      {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1, .maximize = true}, 7, 0.5);
  for (const AdamwFormat& f : all_formats()) {
    Parameter p(f, kN);
    std::mt19937 gen(1);
    std::normal_distribution<float> normal;
    std::vector<Element> before(kN);
    for (size_t i = 0; i < kN; ++i) {
      const float w = normal(gen), v = normal(gen) * normal(gen);
      Element& e = before[i];
      const SplitWeight split = split_f32(w);
      e.weight = f.weight == Dtype::kF32 ? std::bit_cast<uint32_t>(w) : split.weight;
      e.master = f.master == MasterMode::kFp32    ? std::bit_cast<uint32_t>(w)
                 : f.master == MasterMode::kSplit ? static_cast<uint16_t>(split.remainder)
                                                  : 0;
      e.grad = encode(normal(gen), f.grad, Rounding::kNearest, 0);
      e.exp_avg = encode(normal(gen), f.exp_avg, Rounding::kNearest, 0);
      e.exp_avg_sq = encode(v * v, f.exp_avg_sq, Rounding::kNearest, 0);
      e.max_exp_avg_sq = encode(v * v * (i % 3), f.exp_avg_sq, Rounding::kNearest, 0);
      p.set(i, e);
    }
    AdamwSlice slice = p.slice(kN, scalars);
    slice.global_col0 = 5;  // not a multiple of a noise block
    slice.global_cols = kN + 5;
    adamw_step(f, {&slice, 1}, kSeed);
    for (size_t i = 0; i < kN; ++i) {
      ASSERT_EQ(p.get(i), expected_step(f, scalars, before[i], static_cast<int64_t>(i) + 5, 7,
                                        slice.name_hash))
          << "element " << i << " master " << master_name(f.master) << " exp_avg "
          << dtype_name(f.exp_avg) << " exp_avg_sq " << dtype_name(f.exp_avg_sq) << " amsgrad "
          << f.amsgrad;
    }
  }
}

TEST(AdamwStep, AmsgradTakesNaN) {
  const AdamwFormat f{.exp_avg_sq = Dtype::kBF16, .amsgrad = true};
  const AdamwScalars scalars = adamw_scalars({}, 1, 1);
  Parameter p(f, 1);
  p.set(0, {.weight = 0x3F80,
            .master = 0x3F800000,
            .grad = 0x7FC00000,
            .exp_avg = 0,
            .exp_avg_sq = 0,
            .max_exp_avg_sq = 0x4000});
  const AdamwSlice slice = p.slice(1, scalars);
  adamw_step(f, {&slice, 1}, kSeed);
  EXPECT_TRUE(std::isnan(bf16_decode(static_cast<uint16_t>(p.get(0).max_exp_avg_sq))));
}

// β2 = 0.5: v' = v/2 + g²/2. Counted are finite exact values above 2046.5, not NaN and not Inf, and
// whatever the noise does.
TEST(AdamwStep, CountsSaturatedValuesExactly) {
  AdamwFormat f{.exp_avg_sq = Dtype::kUE6M10};
  const AdamwScalars scalars = adamw_scalars({.beta2 = 0.5}, 1, 1);
  const float halves_of_squares[] = {2046.5f, 2046.6f, 1e6f, INFINITY, NAN};
  for (Rounding rounding : {Rounding::kNearest, Rounding::kStochastic}) {
    f.exp_avg_sq_rounding = rounding;
    int64_t expected = 0;
    Parameter p(f, 5);
    for (size_t i = 0; i < 5; ++i) {
      const float g = std::sqrt(2 * halves_of_squares[i]);
      const float v = 0.5f * (g * g);
      expected += std::isfinite(v) && v > 2046.5f;
      p.set(i, {.weight = 0,
                .master = 0,
                .grad = std::bit_cast<uint32_t>(g),
                .exp_avg = 0,
                .exp_avg_sq = 0,
                .max_exp_avg_sq = 0});
    }
    const AdamwSlice slice = p.slice(5, scalars);
    EXPECT_EQ(adamw_step(f, {&slice, 1}, kSeed), expected);
    EXPECT_GE(expected, 2);
    EXPECT_EQ(p.get(2).exp_avg_sq, kUe6m10Max);
    EXPECT_EQ(p.get(3).exp_avg_sq, kUe6m10NaN);
    EXPECT_EQ(p.get(4).exp_avg_sq, kUe6m10NaN);
  }
}

// A BF16 exp_avg that decays by 0.9 reaches 0 instead of sticking at the smallest subnormals.
TEST(AdamwStep, SubnormalStatesAreFlushed) {
  const AdamwFormat f{.exp_avg = Dtype::kBF16, .exp_avg_sq = Dtype::kBF16};
  const AdamwScalars scalars = adamw_scalars({}, 100, 1);
  Parameter p(f, 1);
  p.set(0, {.weight = 0x3F80,
            .master = 0x3F800000,
            .grad = 0,
            .exp_avg = 5,
            .exp_avg_sq = 5,
            .max_exp_avg_sq = 0});
  const AdamwSlice slice = p.slice(1, scalars);
  adamw_step(f, {&slice, 1}, kSeed);
  EXPECT_EQ(p.get(0).exp_avg, 0u);
  EXPECT_EQ(p.get(0).exp_avg_sq, 0u);
}

class AdamwArguments : public testing::Test {
 protected:
  void expect_refused() {
    const Element before = parameter_.get(0);
    EXPECT_THROW(adamw_step(format_, {&slice_, 1}, kSeed), UsageError);
    EXPECT_THROW(rounding_health(format_, {&slice_, 1}, kSeed), UsageError);
    EXPECT_EQ(parameter_.get(0), before);
  }

  AdamwFormat format_;
  AdamwScalars scalars_ = adamw_scalars({}, 1, 1);
  Parameter parameter_{format_, 4};
  AdamwSlice slice_ = parameter_.slice(4, scalars_);
};

TEST_F(AdamwArguments, AreTakenIfComplete) {
  EXPECT_NO_THROW(adamw_step(format_, {&slice_, 1}, kSeed));
  slice_.cols = 0;  // nothing to do, whatever the pointers
  slice_.weight = nullptr;
  EXPECT_NO_THROW(adamw_step(format_, {&slice_, 1}, kSeed));
  EXPECT_NO_THROW(adamw_step(format_, {}, kSeed));
}

TEST_F(AdamwArguments, ScalarsMustBeFinite) {
  scalars_.s = NAN;
  expect_refused();
}

TEST_F(AdamwArguments, NoiseBlocksStayBelow2To48) {
  slice_.global_col0 = (int64_t{8} << 48) - 4;
  slice_.global_cols = int64_t{8} << 48;
  EXPECT_NO_THROW(adamw_step(format_, {&slice_, 1}, kSeed));
  slice_.global_col0 += 1;
  slice_.global_cols += 1;
  expect_refused();
  slice_.global_row0 = int64_t{1} << 40;
  slice_.global_col0 = 0;
  slice_.global_cols = int64_t{1} << 40;  // a product beyond 64 bits
  expect_refused();
}

TEST_F(AdamwArguments, SlicesLieInsideTheirParameter) {
  slice_.global_col0 = 1;
  expect_refused();
}

TEST_F(AdamwArguments, StepsStartAtOne) {
  slice_.t = 0;
  expect_refused();
}

TEST_F(AdamwArguments, PointersThatTheFormatNeeds) {
  slice_.max_exp_avg_sq = nullptr;
  EXPECT_NO_THROW(adamw_step(format_, {&slice_, 1}, kSeed));
  format_.amsgrad = true;
  expect_refused();
  format_.amsgrad = false;
  slice_.master = nullptr;
  expect_refused();
}

TEST_F(AdamwArguments, FormatsThatExist) {
  format_.exp_avg = Dtype::kUE6M10;  // exp_avg has a sign
  expect_refused();
  format_ = {.weight = Dtype::kF32, .master = MasterMode::kFp32};
  expect_refused();
}

}  // namespace
}  // namespace halfstep::kernels
