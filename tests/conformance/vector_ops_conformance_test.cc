// Every implementation's other passes (vector_ops.h) against the reference: all dtypes × roundings
// × data classes × sizes × alignments × noise addresses, 0 differing bits.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>

#include "guarded_array.h"
#include "halfstep/kernels/kernel_table.h"
#include "halfstep/kernels/vector_ops.h"
#include "implementations_under_test.h"
#include "test_data.h"

namespace halfstep::conformance {
namespace {

constexpr auto kF32 = Dtype::kF32, kBF16 = Dtype::kBF16, kUE6M10 = Dtype::kUE6M10;
constexpr Rounding kRoundings[] = {Rounding::kNearest, Rounding::kStochastic};

// Sizes around every vector and run; the largest has several chunks of work for the threads.
constexpr int64_t kSizes[] = {0,  1,  3,  4,  5,   7,   8,   9,    15,   16,   17,      31,     32,
                              33, 63, 64, 65, 511, 512, 513, 4095, 4096, 4097, 100'003, 300'017};
// Noise addresses: at and off a block, and before 2^35, where a counter word changes.
constexpr int64_t kFirsts[] = {0, 3, (int64_t{1} << 35) - 40, (int64_t{3} << 35) - 13};

kernels::NoiseRun noise_from(int64_t first, uint32_t micro_step) {
  return {.stream = {.seed = 0x0123456789ABCDEFu,
                     .name_hash = 0xFEDCBA9876543210u,
                     .step = 77,
                     .purpose = NoisePurpose::kGradient,
                     .micro_step = micro_step},
          .first = first};
}

// What one call wrote, and the number that it returned, if any.
struct Result {
  std::vector<GuardedArray> written;
  uint64_t returned = 0;
};

// Runs `call` for the reference and for every implementation, over all sizes and data classes.
using Call = std::function<Result(DataClass data, int64_t n, int64_t first, ThreadPool& pool)>;
void expect_reference_bits(const Call& call) {
  ThreadPool pool(3);
  for (DataClass data : kDataClasses) {
    for (int64_t n : kSizes) {
      for (int64_t first : kFirsts) {
        if (n > 5000 && first % 8 == 0) continue;  // off a block, straddling: enough
        Result expected;
        with_implementation("reference", [&] { expected = call(data, n, first, pool); });
        for (const std::string& implementation : implementations_under_test()) {
          SCOPED_TRACE(implementation + ", " + std::string(name_of(data)) + " data, n " +
                       std::to_string(n) + ", first " + std::to_string(first));
          Result actual;
          with_implementation(implementation, [&] {
            actual = call(data, n, first, pool);
            EXPECT_EQ(kernels::path_counters.vector_op, n) << "which kernel ran?";
            if (data == DataClass::kOrdinary && n > 5000) {
              EXPECT_LT(kernels::path_counters.handed_over, n / 10) << "left the fast path";
            }
          });
          EXPECT_EQ(actual.returned, expected.returned);
          for (size_t k = 0; k < expected.written.size(); ++k) {
            ASSERT_TRUE(same("output", actual.written[k], expected.written[k]));
          }
        }
      }
    }
  }
}

GuardedArray filled(DataClass data, Role role, Dtype dtype, int64_t n, int64_t first,
                    uint64_t seed) {
  GuardedArray array(dtype, n, static_cast<int64_t>((n + static_cast<int64_t>(seed)) % 7));
  array.fill(data, role, seed, first);
  return array;
}

TEST(VectorOpsConformance, Convert) {
  constexpr std::pair<Dtype, Dtype> kPairs[] = {
      {kF32, kBF16}, {kBF16, kF32}, {kUE6M10, kF32}, {kF32, kUE6M10}};
  for (const auto& [dst, src] : kPairs) {
    for (Rounding rounding : kRoundings) {
      SCOPED_TRACE(std::string(dtype_name(src)) + " to " + std::string(dtype_name(dst)) + ", " +
                   std::string(rounding_name(rounding)));
      const Role role = dst == kUE6M10 || src == kUE6M10 ? Role::kExpAvgSq : Role::kGrad;
      expect_reference_bits(
          [&, dst = dst, src = src](DataClass data, int64_t n, int64_t first, ThreadPool& pool) {
            const GuardedArray from = filled(data, role, src, n, first, 1);
            Result result{{GuardedArray(dst, n, n % 5)}};
            kernels::convert(result.written[0].data(), dst, from.data(), src, n, rounding,
                             noise_from(first, 0), pool);
            return result;
          });
    }
  }
}

TEST(VectorOpsConformance, Accumulate) {
  for (Dtype dst : {kF32, kBF16}) {
    for (Dtype src : {kF32, kBF16}) {
      for (Rounding rounding : kRoundings) {
        SCOPED_TRACE(std::string(dtype_name(src)) + " onto " + std::string(dtype_name(dst)) + ", " +
                     std::string(rounding_name(rounding)));
        expect_reference_bits([&](DataClass data, int64_t n, int64_t first, ThreadPool& pool) {
          const GuardedArray from = filled(data, Role::kGrad, src, n, first, 1);
          Result result{{filled(data, Role::kGrad, dst, n, first, 2)}};
          kernels::accumulate(result.written[0].data(), dst, from.data(), src, n, rounding,
                              noise_from(first, 65'535), pool);
          return result;
        });
      }
    }
  }
}

// The sum is a number, compared by its bits (any NaN equals any NaN).
TEST(VectorOpsConformance, SumSquares) {
  for (Dtype dtype : {kF32, kBF16}) {
    SCOPED_TRACE(dtype_name(dtype));
    expect_reference_bits([&](DataClass data, int64_t n, int64_t first, ThreadPool& pool) {
      const GuardedArray x = filled(data, Role::kGrad, dtype, n, first, 1);
      const double sum = kernels::sum_squares(x.data(), dtype, n, pool);
      return Result{{}, std::isnan(sum) ? 1 : std::bit_cast<uint64_t>(sum)};
    });
  }
}

TEST(VectorOpsConformance, SumRanks) {
  for (Dtype dtype : {kF32, kBF16}) {
    for (size_t ranks : {1, 2, 5}) {
      for (bool in_place : {false, true}) {
        if (in_place && dtype != kF32) continue;  // only FP32 may be its own destination
        SCOPED_TRACE(std::string(dtype_name(dtype)) + ", ranks " + std::to_string(ranks) +
                     (in_place ? ", in place" : ""));
        expect_reference_bits([&](DataClass data, int64_t n, int64_t first, ThreadPool& pool) {
          std::vector<GuardedArray> inputs;
          std::vector<const void*> contributions;
          for (size_t rank = 0; rank < ranks; ++rank) {
            inputs.push_back(filled(data, Role::kGrad, dtype, n, first, rank + 1));
          }
          Result result{{GuardedArray(kF32, n, 1)}};
          if (in_place) result.written[0] = inputs.back();
          for (const GuardedArray& input : inputs) contributions.push_back(input.data());
          if (in_place) contributions.back() = result.written[0].data();
          kernels::sum_ranks(static_cast<float*>(result.written[0].data()), contributions, dtype, n,
                             pool);
          return result;
        });
      }
    }
  }
}

TEST(VectorOpsConformance, SplitAndJoin) {
  expect_reference_bits([&](DataClass data, int64_t n, int64_t first, ThreadPool& pool) {
    const GuardedArray master = filled(data, Role::kWeight, kF32, n, first, 1);
    Result result{{GuardedArray(kBF16, n, n % 5), GuardedArray(Dtype::kI16, n, n % 3)}};
    result.returned = static_cast<uint64_t>(
        kernels::split_master(static_cast<uint16_t*>(result.written[0].data()),
                              static_cast<int16_t*>(result.written[1].data()),
                              static_cast<const float*>(master.data()), n, pool));
    return result;
  });
  expect_reference_bits([&](DataClass data, int64_t n, int64_t first, ThreadPool& pool) {
    const GuardedArray weight = filled(data, Role::kWeight, kBF16, n, first, 1);
    const GuardedArray remainder = filled(data, Role::kRemainder, Dtype::kI16, n, first, 1);
    Result result{{GuardedArray(kF32, n, n % 5)}};
    kernels::join_master(static_cast<float*>(result.written[0].data()),
                         static_cast<const uint16_t*>(weight.data()),
                         static_cast<const int16_t*>(remainder.data()), n, pool);
    return result;
  });
}

}  // namespace
}  // namespace halfstep::conformance
