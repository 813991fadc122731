#include "halfstep/optim/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "halfstep/kernels/vector_ops.h"
#include "halfstep/optim/test_support.h"

namespace halfstep::optim {
namespace {

using layout::MemoryClass;
using ::testing::HasSubstr;
using testing::make_arenas;
using testing::small_model;

// The FP32 value that the optimizer would start from.
at::Tensor master_of(const Arenas& arenas, int64_t parameter) {
  const at::Tensor weight = arenas.view(MemoryClass::kWeight, parameter);
  const at::Tensor master = arenas.view(MemoryClass::kMaster, parameter);
  if (!master.defined()) return weight.to(at::kFloat);
  if (master.scalar_type() == at::kFloat) return master;
  at::Tensor joined = at::empty({weight.numel()}, at::kFloat);
  kernels::join_master(joined.data_ptr<float>(),
                       static_cast<const uint16_t*>(weight.const_data_ptr()),
                       static_cast<const int16_t*>(master.const_data_ptr()), weight.numel());
  return joined;
}

TEST(Weights, AllMasterModesStartFromTheSameWeights) {
  const auto fp32 = make_arenas(small_model(), {.format = testing::kO2});
  const auto split = make_arenas(small_model(), {.format = testing::kO2Split});
  const auto none = make_arenas(small_model(), {.format = testing::kO2NoMaster});
  for (Arenas* arenas : {fp32.get(), split.get(), none.get()}) init_weights(*arenas, 7);
  for (int64_t p = 0; p < std::ssize(fp32->parameters()); ++p) {
    const at::Tensor weight = fp32->weights()[p].flatten().to(at::kFloat);
    for (Arenas* arenas : {fp32.get(), split.get(), none.get()}) {
      EXPECT_TRUE(arenas->weights()[p].equal(fp32->weights()[p]));
      EXPECT_TRUE(master_of(*arenas, p).equal(weight));
    }
  }
}

TEST(Weights, InitialValuesFollowTheKindOfParameter) {
  const auto arenas = make_arenas(small_model(), {.format = testing::kO2});
  init_weights(*arenas, 7);
  EXPECT_TRUE(arenas->weights()[2].eq(0).all().item<bool>());  // bias
  EXPECT_TRUE(arenas->weights()[3].eq(1).all().item<bool>());  // norm
  for (const int64_t p : {0, 1, 4}) {
    const at::Tensor w = arenas->weights()[p].detach().to(at::kDouble);
    const double n = static_cast<double>(w.numel());
    // 4 σ of the mean and of the standard deviation of n normal numbers.
    EXPECT_NEAR(w.mean().item<double>(), 0, 4 * 0.02 / std::sqrt(n));
    EXPECT_NEAR(w.std().item<double>(), 0.02, 4 * 0.02 / std::sqrt(2 * n));
  }
  // Another parameter, another seed: other values. The same again: the same.
  EXPECT_FALSE(arenas->weights()[0].flatten().narrow(0, 0, 700).equal(
      arenas->weights()[1].flatten().narrow(0, 0, 700)));
  const auto again = make_arenas(small_model(), {.format = testing::kO2});
  init_weights(*again, 7);
  EXPECT_EQ(testing::fingerprint(*arenas), testing::fingerprint(*again));
  init_weights(*again, 8);
  EXPECT_NE(testing::fingerprint(*arenas), testing::fingerprint(*again));
}

TEST(Weights, AnFp32SourceKeepsItsBitsInTheMaster) {
  const auto fp32 = make_arenas(small_model(), {.format = testing::kO2});
  const auto split = make_arenas(small_model(), {.format = testing::kO2Split});
  const auto none = make_arenas(small_model(), {.format = testing::kO2NoMaster});
  const auto plain = make_arenas(small_model(), {.format = testing::kAllFp32});
  const at::Tensor source = testing::gradient(*fp32, 4, 1);
  // 0.1 is .098 % off in BF16: a master rebuilt from the weight would show it.
  source.flatten()[0].fill_(0.1f);
  source.flatten()[1].fill_(1.00390625f);  // a tie with an even upper half: split loses an ulp
  for (Arenas* arenas : {fp32.get(), none.get(), plain.get()}) {
    EXPECT_EQ(set_weight(*arenas, 4, source), 0);
  }
  EXPECT_EQ(set_weight(*split, 4, source), 1);
  EXPECT_TRUE(master_of(*fp32, 4).equal(source.flatten()));
  EXPECT_TRUE(plain->weights()[4].equal(source));
  at::Tensor expected = source.flatten().clone();
  expected[1].fill_(std::nextafter(1.00390625f, 0.0f));
  EXPECT_TRUE(master_of(*split, 4).equal(expected));
  for (Arenas* arenas : {fp32.get(), split.get(), none.get()}) {
    EXPECT_TRUE(arenas->weights()[4].equal(source.to(at::kBFloat16)));
  }
}

TEST(Weights, ABf16SourceIsTheMaster) {
  const auto split = make_arenas(small_model(), {.format = testing::kO2Split});
  const auto fp32 = make_arenas(small_model(), {.format = testing::kO2});
  const at::Tensor old = testing::gradient(*split, 1, 1);
  const at::Tensor source = testing::gradient(*split, 1, 2).to(at::kBFloat16);
  for (Arenas* arenas : {split.get(), fp32.get()}) {
    set_weight(*arenas, 1, old);  // leaves remainders behind
    set_weight(*arenas, 1, source);
    EXPECT_TRUE(arenas->weights()[1].equal(source));
    EXPECT_TRUE(master_of(*arenas, 1).equal(source.flatten().to(at::kFloat)));
    arenas->view(MemoryClass::kWeight, 1).fill_(-0.75);
    reset_masters(*arenas);
    EXPECT_TRUE(master_of(*arenas, 1).eq(-0.75).all().item<bool>());
  }
}

TEST(Weights, WrongSourcesAreNamed) {
  const auto arenas = make_arenas(small_model(), {.format = testing::kO2});
  EXPECT_THAT(testing::message_of<InputError>([&] {
                set_weight(*arenas, 1, at::zeros({24, 32}));
              }),
              HasSubstr("q_proj.weight' has shape [24, 32], expected [32, 24]"));
  EXPECT_THAT(testing::message_of<InputError>([&] {
                set_weight(*arenas, 1, at::zeros({32, 24}, at::kHalf));
              }),
              HasSubstr("Half"));
}

TEST(Weights, SumOfSquaresIsThatOfTheStoredWeights) {
  for (const auto& format : {testing::kO2, testing::kAllFp32}) {
    const auto arenas = make_arenas(small_model(), {.format = format});
    init_weights(*arenas, 7);
    const double expected =
        arenas->weights()[4].detach().to(at::kDouble).square().sum().item<double>();
    // Two orders of n FP64 additions: n ulp of a sum of positive terms.
    EXPECT_NEAR(weight_sum_squares(*arenas, 4), expected, 4800 * 0x1p-52 * expected);
  }
}

}  // namespace
}  // namespace halfstep::optim
