// O2 trains as well as FP32 state: the same data and initial weights, 300 steps.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "run.h"

namespace halfstep::testing {
namespace {

// The mean loss of the last 30 steps.
double final_loss(const RunResult& result) {
  EXPECT_FALSE(result.failed) << result.error;
  const auto losses = result.series("loss");
  return std::accumulate(losses.end() - 30, losses.end(), 0.0) / 30;
}

TEST(LongTraining, O2EndsWhereFp32StateEnds) {
  const TestFolder folder;
  const Args args =
      tiny_run(write_text(folder, "text.txt")) +
      Args{"--bf16", "--train-iters",      "300",    "--global-batch-size",
           "8",      "--micro-batch-size", "4",      "--lr",
           "5e-3",   "--lr-decay-style",   "cosine", "--no-gradient-accumulation-fusion"};
  // Equal runs but for their initial weights show how far apart chance puts two of them.
  std::vector<double> equal;
  for (const char* seed : {"1", "2", "3", "4"}) {
    equal.push_back(final_loss(run(args + Args{"--seed", seed})));
  }
  const double mean = std::accumulate(equal.begin(), equal.end(), 0.0) / 4;
  double variance = 0;
  for (const double loss : equal) variance += (loss - mean) * (loss - mean) / 3;
  for (const Args& o2 : {Args{"--o2-optimizer", "--o2-gradient", "--reuse-fp32-param"},
                         Args{"--o2-optimizer", "--o2-gradient", "--exp-avg-sq-dtype", "ue6m10"}}) {
    const double loss = final_loss(run(args + o2 + Args{"--seed", "1"}));
    // A prediction interval from 4 equal runs at 95 % (t(.975, 3) = 3.18), or .5 % of the loss.
    const double bound = std::max(3.18 * std::sqrt(variance * 1.25), 0.005 * mean);
    EXPECT_NEAR(loss, mean, bound);
  }
  EXPECT_LT(mean, 0.4 * std::log(257.0)) << "the runs did not learn, so they show nothing";
}

}  // namespace
}  // namespace halfstep::testing
