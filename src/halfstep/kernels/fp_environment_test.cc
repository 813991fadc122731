#include "halfstep/kernels/fp_environment.h"

#include <gtest/gtest.h>
#include <xmmintrin.h>

#include <cfenv>
#include <vector>

#include "halfstep/kernels/vector_ops.h"

namespace halfstep::kernels {
namespace {

TEST(FpEnvironment, IsRestoredWithItsFlags) {
  const uint32_t original = _mm_getcsr();
  const uint32_t callers = (original & ~0x3Fu) | _MM_ROUND_UP | _MM_EXCEPT_INEXACT;
  _mm_setcsr(callers);
  {
    const KernelFpEnvironment environment;
    EXPECT_EQ(_mm_getcsr() & 0x8040, 0x8040u);         // flush to zero, denormals are zero
    EXPECT_EQ(_mm_getcsr() & _MM_ROUND_MASK, 0u);      // nearest
    EXPECT_EQ(_mm_getcsr() & _MM_MASK_MASK, 0x1F80u);  // no traps
  }
  EXPECT_EQ(_mm_getcsr(), callers);
  _mm_setcsr(original);
}

// On every thread of the pool, inputs and results, and whatever rounding the caller has set.
TEST(FpEnvironment, KernelsFlushSubnormalsOnAllThreads) {
  ThreadPool pool(3);
  const size_t n = 1 << 20;
  // Even elements: two subnormals whose sum would be one. Odd: normal numbers with a subnormal
  // difference.
  std::vector<float> sum(n, 0x1p-140f), x(n, 0x1p-127f);
  for (size_t i = 1; i < n; i += 2) {
    sum[i] = 0x1.8p-126f;
    x[i] = -0x1p-126f;
  }
  ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
  accumulate(sum.data(), Dtype::kF32, x.data(), Dtype::kF32, n, Rounding::kNearest, {}, pool);
  std::vector<float> one(1, 1.0f);
  const float tiny = 0x1p-30f;
  accumulate(one.data(), Dtype::kF32, &tiny, Dtype::kF32, 1, Rounding::kNearest, {}, pool);
  EXPECT_EQ(std::fegetround(), FE_UPWARD);
  ASSERT_EQ(std::fesetround(FE_TONEAREST), 0);
  EXPECT_EQ(one[0], 1.0f);
  for (float s : sum) ASSERT_EQ(s, 0.0f);
  const volatile float subnormal = 0x1p-127f;
  EXPECT_NE(subnormal * 0.5f, 0.0f);  // the caller's own arithmetic keeps subnormals
}

}  // namespace
}  // namespace halfstep::kernels
