// ZeRO-1 on ranks that are threads: memory, sums, and bits that do not depend on the cut
// (docs/numerics.md §5, §7).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <mutex>
#include <thread>

#include "halfstep/dist/replica_check.h"
#include "halfstep/dist/test_rank.h"
#include "halfstep/kernels/adamw.h"

namespace halfstep::dist {
namespace {

using comm::Communicator;
using comm::run_ranks;
using layout::MemoryClass;
using testing::Gathered;
using testing::Rank;
using testing::RankOptions;
namespace ot = optim::testing;

constexpr int kSizes[] = {1, 2, 3, 4, 6, 8};

std::vector<arch::Parameter> odd_model() {
  return {ot::parameter("five", {5}, arch::ParameterKind::kBias),
          ot::parameter("one", {1}, arch::ParameterKind::kBias),
          ot::parameter("seven", {7}, arch::ParameterKind::kBias),
          ot::parameter("large", {1, 1'000'003})};
}

// ---- memory

// 2N′ + 2N′ + (2 + 2 + 2)N′/DP with a split master, 2 bytes more of N′/DP with an FP32 one; N′ is N
// rounded up parameter by parameter and bucket by bucket. Scratch is two buckets of 2 bytes.
TEST(Zero1, BytesOfARankFollowTheLaw) {
  for (const int size : kSizes) {
    for (const bool split : {true, false}) {
      run_ranks(size, [&](Communicator& ranks) {
        const Rank rank(ranks, {.parameters = odd_model(),
                                .layout = {.format = split ? ot::kO2Split : ot::kO2}});
        const auto up = [](int64_t n, int64_t to) { return (n + to - 1) / to * to; };
        const int64_t padded = up(3 * 128 + up(1'000'003, 128), 128 * size);
        const optim::MemoryReport& memory = rank.arenas->memory();
        EXPECT_EQ(memory.num_elements, padded);
        EXPECT_EQ(memory.measured_bytes,
                  padded * 4 + padded / size * (split ? 2 + 2 + 2 : 4 + 2 + 2));
        // One bucket: 2 MB are less than its 32 MiB.
        EXPECT_EQ(rank.reducer->scratch_bytes(), size == 1 ? 0 : 2 * padded);
      });
    }
  }
}

// ---- sums

// A micro-batch's gradient of a parameter.
at::Tensor micro_gradient(const optim::Arenas& arenas, int64_t p, int64_t step, int64_t k) {
  return ot::gradient(arenas, p, step * 1000 + k);
}

struct Reduced {
  std::vector<at::Tensor> sums;  // by parameter, FP64
  optim::StepResult result;
};

Reduced reduce(int size, const RankOptions& options) {
  Reduced all;
  std::mutex mutex;
  run_ranks(size, [&](Communicator& ranks) {
    Rank rank(ranks, options);
    rank.accumulate([&](int64_t k) {
      for (int64_t p = 0; p < std::ssize(options.parameters); ++p) {
        rank.gradients->add(p, micro_gradient(*rank.arenas, p, 1, k));
      }
    });
    std::vector<at::Tensor> sums;
    for (int64_t p = 0; p < std::ssize(options.parameters); ++p) sums.push_back(rank.reduced(p));
    const optim::StepResult result = rank.update(4);
    const std::lock_guard lock(mutex);
    if (all.sums.empty()) {
      all = {.sums = std::move(sums), .result = result};
      return;
    }
    for (size_t p = 0; p < sums.size(); ++p) all.sums[p] += sums[p];
    EXPECT_EQ(result.grad_norm, all.result.grad_norm);
    EXPECT_EQ(result.clip_coefficient, all.result.clip_coefficient);
  });
  return all;
}

// One global batch of 8 micro-batches as 1×8, 2×4, 4×2 and 8×1. A sum of n terms with one rounding
// each is off by at most n·u·Σ|g|, u = half an ulp: BF16 2^-8 for accumulation (the first copy
// included), FP32 2^-24 for the sum over ranks.
TEST(Zero1, HoweverAGlobalBatchIsCutItsGradientIsTheSumOfItsMicroBatches) {
  for (const auto& format : {ot::kBaseline, ot::kO2Split}) {
    const RankOptions options{.layout = {.format = format}, .adamw = {.clip_grad = 0.05}};
    const auto probe = ot::make_arenas(options.parameters, {.format = format});
    std::vector<at::Tensor> exact, magnitude;
    double norm = 0;
    for (int64_t p = 0; p < std::ssize(options.parameters); ++p) {
      exact.push_back(at::zeros({options.parameters[p].numel()}, at::kDouble));
      magnitude.push_back(exact.back().clone());
      for (int64_t k = 0; k < 8; ++k) {
        const at::Tensor g = micro_gradient(*probe, p, 1, k).to(at::kDouble).view(-1);
        exact[p] += g;
        magnitude[p] += g.abs();
      }
      norm += exact[p].square().sum().item<double>();
    }
    norm = std::sqrt(norm) / 4;
    for (const int size : {1, 2, 4, 8}) {
      const Reduced got = reduce(size, options);
      const double u = format.gradient == Dtype::kF32 ? 0x1p-24 : 0x1p-8;
      const double bound = 8.0 / size * u + size * 0x1p-24;
      double worst = 0;  // of the norm: √Σ bound²
      for (size_t p = 0; p < exact.size(); ++p) {
        const at::Tensor allowed = magnitude[p] * bound;
        EXPECT_TRUE((got.sums[p] - exact[p]).abs().le(allowed).all().item<bool>())
            << size << " ranks, parameter " << p;
        worst += allowed.square().sum().item<double>();
      }
      EXPECT_NEAR(got.result.grad_norm, norm, std::sqrt(worst) / 4);
      EXPECT_LT(got.result.clip_coefficient, 1);
    }
  }
}

// FP32: each rank's sum in its order, then ranks in theirs.
TEST(Zero1, TheFp32SumIsInRankOrderToTheBit) {
  const RankOptions options{.layout = {.format = ot::kBaseline}};
  const auto probe = ot::make_arenas(options.parameters, options.layout);
  for (const int size : kSizes) {
    RankOptions cut = options;
    cut.global_micro_batches = 24;
    const Reduced got = reduce(size, cut);
    for (int64_t p = 0; p < std::ssize(options.parameters); ++p) {
      at::Tensor sum;
      for (int r = 0; r < size; ++r) {
        at::Tensor part;
        for (int64_t k = 24 / size * r; k < 24 / size * (r + 1); ++k) {
          const at::Tensor g = micro_gradient(*probe, p, 1, k);
          part = part.defined() ? part + g : g;
        }
        sum = sum.defined() ? sum + part : part;
      }
      EXPECT_TRUE(got.sums[p].equal(sum.to(at::kDouble).view(-1))) << size << " ranks, " << p;
    }
  }
}

// A BF16 ring would stop at 256: 256 + 1 is a tie that goes to even.
TEST(Zero1, OnesOf384RanksAre384) {
  run_ranks(384, [](Communicator& ranks) {
    Rank rank(ranks, {.parameters = {ot::parameter("w", {1, 300})}, .global_micro_batches = 384});
    rank.accumulate([&](int64_t) { rank.gradients->add(0, at::ones({1, 300})); });
    const at::Tensor sum = rank.reduced(0);
    EXPECT_TRUE(sum.eq(384).logical_or(sum.eq(0)).all().item<bool>());
    if (const layout::ShardSlice* slice = rank.arenas->owned(0)) {
      EXPECT_EQ(sum.sum().item<double>(), 384.0 * static_cast<double>(slice->numel));
    }
  });
}

// ---- bits

// From the same reduced gradients: rank 0 has them, the others have zeros.
Gathered fifty_steps(int size, const RankOptions& options) {
  Gathered all;
  std::mutex mutex;
  run_ranks(size, [&](Communicator& ranks) {
    RankOptions mine = options;
    mine.global_micro_batches = ranks.size();
    Rank rank(ranks, mine);
    for (int64_t step = 1; step <= 50; ++step) {
      rank.accumulate([&](int64_t k) {
        for (int64_t p = 0; p < std::ssize(options.parameters); ++p) {
          const at::Tensor g =
              ot::gradient(*rank.arenas, p, step).to(at::kBFloat16).to(at::kFloat);
          rank.gradients->add(p, k == 0 ? g : at::zeros_like(g));
        }
      });
      rank.update();
    }
    rank.gather->wait_for_all();
    const std::lock_guard lock(mutex);
    all.add(*rank.arenas);
  });
  return all;
}

TEST(Zero1, FiftyStepsGiveTheSameBitsOnAnyNumberOfRanks) {
  for (const auto& format : {ot::kO2, ot::kO2Split, ot::kO2NoMaster, ot::kBaseline, ot::kAllFp32}) {
    const RankOptions options{
        .layout = {.format = format, .keep_fp32 = ot::is_norm, .bucket_bytes = 6000},
        .adamw = {.clip_grad = 0}};
    const Gathered one = fifty_steps(1, options);
    for (const int size : {2, 3, 4, 6, 8}) {
      EXPECT_TRUE(fifty_steps(size, options) == one) << size << " ranks";
    }
  }
}

// ---- overlap, bucket size, unused parameters

// A "model" whose parameter p has the gradient coefficients[p]: through autograd and its hooks.
// Parameters without one are not used.
void backward(const optim::Arenas& arenas, const std::vector<at::Tensor>& coefficients) {
  at::Tensor loss = at::zeros({});
  for (size_t p = 0; p < coefficients.size(); ++p) {
    if (!coefficients[p].defined()) continue;
    loss = loss + (arenas.weights()[p].to(at::kFloat) * coefficients[p]).sum();
  }
  loss.backward();
}

struct Outcome {
  Gathered state;
  uint64_t weights = 0;
  comm::Traffic traffic;
};

Outcome twenty_steps(int size, const RankOptions& options) {
  Outcome out;
  std::mutex mutex;
  run_ranks(size, [&](Communicator& ranks) {
    Rank rank(ranks, options);
    for (int64_t step = 1; step <= 20; ++step) {
      rank.accumulate([&](int64_t k) {
        std::vector<at::Tensor> coefficients;
        for (int64_t p = 0; p < std::ssize(options.parameters); ++p) {
          // Parameter 3 is used by no micro-batch of odd steps, parameter 2 by the first half of
          // them only, so in the last micro-batch of some ranks it does not appear.
          const bool unused = (p == 3 && step % 2 == 1) || (p == 2 && k >= 4);
          coefficients.push_back(unused ? at::Tensor()
                                        : micro_gradient(*rank.arenas, p, step, k));
        }
        backward(*rank.arenas, coefficients);
      });
      rank.update(4);
    }
    rank.gather->wait_for_all();
    EXPECT_EQ(rank.adamw->updates()[3], 10);
    EXPECT_EQ(rank.adamw->updates()[2], 20);
    const uint64_t weights = testing::weights_of(*rank.arenas);
    const std::lock_guard lock(mutex);
    if (ranks.rank() == 0) out.traffic = ranks.traffic();
    if (out.weights == 0) out.weights = weights;
    EXPECT_EQ(weights, out.weights) << "rank " << ranks.rank() << " has other weights";
    out.state.add(*rank.arenas);
  });
  return out;
}

TEST(Zero1, NeitherOverlapNorBucketSizeChangesABit) {
  for (const int size : {2, 4}) {
    RankOptions options{.layout = {.format = ot::kO2Split, .keep_fp32 = ot::is_norm}};
    options.layout.bucket_bytes = 64 << 10;
    const Outcome plain = twenty_steps(size, options);
    for (const bool overlap : {false, true}) {
      for (const int64_t bucket : {4 << 10, 64 << 10, 1 << 30}) {
        options.layout.bucket_bytes = bucket;
        options.reducer.overlap = options.overlap_gather = overlap;
        options.reducer.poison = true;  // nothing that is reused may be read
        const Outcome got = twenty_steps(size, options);
        EXPECT_TRUE(got.state == plain.state) << bucket << (overlap ? " overlap" : "");
      }
    }
  }
}

// Counted at the communicator: a step sends (DP − 1)/DP of N′ gradients and weights, 2 bytes each.
TEST(Zero1, BytesOnTheWire) {
  for (const bool o2 : {true, false}) {
    RankOptions options{.layout = {.format = o2 ? ot::kO2Split : ot::kBaseline}};
    const Outcome got = twenty_steps(4, options);
    RankOptions probe = options;
    probe.layout.num_ranks = 4;
    const auto layout = layout::build_layout(probe.parameters, probe.layout);
    const int64_t shards = 20 * layout.arenas[0].num_elements / 4 * 3;
    EXPECT_EQ(got.traffic.all_to_all, shards * (o2 ? 2 : 4));
    EXPECT_EQ(got.traffic.all_gather, shards * 2);
  }
}

// FP32 accumulation, BF16 wire: each rank's contribution is rounded once (2^-9 of it), and no more.
TEST(Zero1, ABf16WireUnderFp32AccumulationRoundsEachRanksSumOnce) {
  RankOptions options{.layout = {.format = ot::kBaseline, .wire = Dtype::kBF16}};
  const auto probe = ot::make_arenas(options.parameters, {.format = ot::kBaseline});
  const Reduced got = reduce(4, options);
  for (int64_t p = 0; p < std::ssize(options.parameters); ++p) {
    at::Tensor sum;
    for (int r = 0; r < 4; ++r) {
      const at::Tensor part = (micro_gradient(*probe, p, 1, 2 * r) +
                               micro_gradient(*probe, p, 1, 2 * r + 1))
                                  .to(at::kBFloat16)
                                  .to(at::kFloat);
      sum = sum.defined() ? sum + part : part;
    }
    EXPECT_TRUE(got.sums[p].equal(sum.to(at::kDouble).view(-1)));
  }
  const Outcome wire = twenty_steps(4, options);
  const int64_t elements =
      layout::build_layout(options.parameters, {.format = ot::kBaseline, .num_ranks = 4})
          .arenas[0]
          .num_elements;
  EXPECT_EQ(wire.traffic.all_to_all, 20 * elements / 4 * 3 * 2);
}

// The way to DP ranks does not lose what a BF16 ring would: the error of the reduced gradient against
// FP64 stays that of one rounding of each contribution, at most 2^-8/√3 rms of it, while a running
// BF16 sum rounds a growing number once per rank.
TEST(Zero1, TheErrorDoesNotGrowWithTheNumberOfRanks) {
  constexpr int64_t kElements = 1 << 12;
  double largest = 0, smallest = 1, ring_of_512 = 0;
  for (const int size : {2, 4, 8, 16, 32, 64, 128, 256, 512}) {
    std::mutex mutex;
    at::Tensor sum = at::zeros({kElements}, at::kDouble), exact = sum.clone(), squares = sum.clone();
    std::vector<at::Tensor> parts(size);
    run_ranks(size, [&](Communicator& ranks) {
      RankOptions options{.parameters = {ot::parameter("w", {1, kElements})}};
      options.global_micro_batches = size;
      Rank rank(ranks, options);
      const at::Tensor g = micro_gradient(*rank.arenas, 0, 1, ranks.rank());
      rank.accumulate([&](int64_t) { rank.gradients->add(0, g); });
      const at::Tensor mine = rank.reduced(0);
      const std::lock_guard lock(mutex);
      parts[ranks.rank()] = g.view(-1);
      sum += mine;
      exact += g.to(at::kDouble).view(-1);
      squares += g.to(at::kDouble).view(-1).square();
    });
    // Relative to √Σ g², which each contribution's rounding is relative to as well.
    const double rms =
        ((sum - exact).square() / squares).mean().sqrt().item<double>();
    largest = std::max(largest, rms);
    smallest = std::min(smallest, rms);
    if (size == 512) {
      at::Tensor ring = parts[0].to(at::kBFloat16);
      for (int r = 1; r < size; ++r) ring = (ring.to(at::kFloat) + parts[r]).to(at::kBFloat16);
      ring_of_512 =
          ((ring.to(at::kDouble) - exact).square() / squares).mean().sqrt().item<double>();
    }
  }
  // An error uniform within half an ulp, 2^-8 of the binade's lower end, has an rms of 2^-8/√3 of it,
  // and less of numbers above; 4096 elements give that within 4/√8192 = 5 %.
  EXPECT_LT(largest, 1.05 * 0x1p-8 / std::sqrt(3));
  EXPECT_LT(largest / smallest, 1.1);
  EXPECT_GT(ring_of_512, 4 * largest);
}

// Two ranks on links of 1 Gbit/s and 5 ms: each sends half of six buckets of 2 MB, 8 ms each, while
// backward takes 15 ms for each. Sleeping stands for computing, so that the figures hold on a busy
// machine too.
TEST(Zero1, AnOverlappedReductionHidesTheWireBehindBackward) {
  constexpr int kParameters = 6;
  std::vector<arch::Parameter> parameters;
  for (int i = 0; i < kParameters; ++i) {
    parameters.push_back(ot::parameter("w" + std::to_string(i), {1000, 1000}));
  }
  const at::Tensor gradient = at::ones({1000, 1000}, at::kBFloat16);
  const auto step_ms = [&](bool overlap) {
    double best = 1e9;
    std::mutex mutex;
    const auto body = [&](Communicator& ranks) {
      RankOptions options{.parameters = parameters, .layout = {.format = ot::kO2Split}};
      options.layout.bucket_bytes = 2'000'000;
      options.reducer.overlap = overlap;
      options.global_micro_batches = 2;
      Rank rank(ranks, options);
      optim::GradientListener& listener = *rank.reducer;
      for (int repeat = 0; repeat < 3; ++repeat) {
        ranks.barrier();
        const auto start = std::chrono::steady_clock::now();
        rank.accumulate([&](int64_t) {
          for (int64_t p = kParameters - 1; p >= 0; --p) {
            std::this_thread::sleep_for(std::chrono::milliseconds(15));
            rank.gradients->add(p, gradient);
            if (overlap) listener.gradient_complete(p);
          }
        });
        const std::chrono::duration<double, std::milli> took =
            std::chrono::steady_clock::now() - start;
        const std::lock_guard lock(mutex);
        best = std::min(best, took.count());
      }
    };
    run_ranks(2, body, {.bytes_per_second = 1e9 / 8, .latency_seconds = 5e-3});
    return best;
  };
  const double plain = step_ms(false), overlapped = step_ms(true);
  const double wire = kParameters * 8.0 + 5;
  EXPECT_GT(plain - overlapped, 0.5 * wire) << plain << " and " << overlapped << " ms";
}

// A bit of one weight on one rank: all ranks say which, and where.
TEST(Zero1, AReplicaThatDiffersIsFound) {
  run_ranks(3, [](Communicator& ranks) {
    RankOptions options;
    options.global_micro_batches = 3;
    Rank rank(ranks, options);
    check_replicas(*rank.arenas, ranks);
    if (ranks.rank() == 2) {
      static_cast<uint16_t*>(rank.arenas->data(MemoryClass::kWeight, 4))[99] ^= 1;
    }
    const std::string message = ot::message_of<Error>([&] { check_replicas(*rank.arenas, ranks); });
    EXPECT_THAT(message, ::testing::HasSubstr("rank 2"));
    EXPECT_THAT(message, ::testing::HasSubstr(options.parameters[4].name));
  });
}

// One rank's NaN stops all of them, and nothing moves.
TEST(Zero1, AllRanksSkipAStepTogether) {
  run_ranks(3, [](Communicator& ranks) {
    RankOptions options;
    options.global_micro_batches = 3;
    Rank rank(ranks, options);
    const uint64_t before = ot::fingerprint(*rank.arenas);
    rank.accumulate([&](int64_t k) {
      for (int64_t p = 0; p < std::ssize(options.parameters); ++p) {
        at::Tensor g = micro_gradient(*rank.arenas, p, 1, k);
        if (k == 1 && p == 4) g.view(-1)[77] = std::nan("");
        rank.gradients->add(p, g);
      }
    });
    const optim::StepResult result = rank.update();
    EXPECT_TRUE(result.skipped);
    EXPECT_EQ(result.bad_parameter, 4);
    EXPECT_EQ(ot::fingerprint(*rank.arenas), before);
    EXPECT_EQ(rank.adamw->updates()[0], 0);
  });
}

}  // namespace
}  // namespace halfstep::dist
