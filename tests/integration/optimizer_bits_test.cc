// The optimizer's own bits in a whole run do not depend on which kernels run nor on how many
// threads they have. torch keeps one thread, as its matmuls may sum in another order on more.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "halfstep/comm/single_rank.h"
#include "halfstep/core/thread_pool.h"
#include "halfstep/kernels/implementation.h"
#include "halfstep/train/check_options.h"
#include "halfstep/train/flags.h"
#include "halfstep/train/loop.h"
#include "halfstep/train/trainer.h"
#include "run.h"

namespace halfstep::testing {
namespace {

// All bytes of weights, masters and states after ten steps.
std::string trained_bytes(const Args& args, int kernel_threads) {
  train::RunLog log(stderr, "", /*quiet=*/true);
  comm::SingleRank ranks;
  const auto trainer =
      train::set_up(train::checked_options(train::parse_flags(args).options), ranks, log);
  ThreadPool::set_global_threads(kernel_threads);
  for (int step = 0; step < 10; ++step) train::train_step(*trainer, {}, /*health=*/false);
  std::string bytes;
  for (size_t a = 0; a < trainer->arenas->layout().arenas.size(); ++a) {
    for (const layout::MemoryClass c : layout::kMemoryClasses) {
      const at::Tensor& flat = trainer->arenas->flat(c, static_cast<int64_t>(a));
      if (!flat.defined()) continue;
      bytes.append(static_cast<const char*>(flat.const_data_ptr()), flat.nbytes());
    }
  }
  return bytes;
}

TEST(OptimizerBits, AreTheSameForEveryImplementationAndThreadCount) {
  const TestFolder folder;
  const Args o2 = tiny_run(write_text(folder, "text.txt")) +
                  Args{"--hidden-size", "64", "--ffn-hidden-size", "160"} + kStochasticO2;
  const std::string fastest(kernels::chosen_implementation());
  for (const Args& more : {Args{"--reuse-fp32-param"}, Args{"--master", "none"},
                           Args{"--exp-avg-sq-dtype", "ue6m10", "--fp32-params", "norm"}}) {
    SCOPED_TRACE(more.back());
    kernels::force_implementation(fastest);
    const std::string expected = trained_bytes(o2 + more, 1);
    // The bytes are those of this seed's rounding, so that noise drawn in another order would show.
    EXPECT_NE(
        trained_bytes(o2 + more + Args{"--state-rounding", "nearest", "--adam-beta2", "0.95"}, 1),
        expected);
    EXPECT_EQ(trained_bytes(o2 + more, 3), expected);
    for (const auto& implementation : kernels::implementations()) {
      if (!implementation.supported) continue;
      SCOPED_TRACE(implementation.name);
      kernels::force_implementation(implementation.name);
      EXPECT_EQ(trained_bytes(o2 + more, 2), expected);
    }
  }
  kernels::force_implementation(fastest);
}

}  // namespace
}  // namespace halfstep::testing
