#include "halfstep/core/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <vector>

namespace halfstep {
namespace {

TEST(ThreadPool, RunsEveryTaskOnceForAnyNumberOfThreads) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.num_threads(), threads);
    for (int64_t tasks : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> runs(tasks);
      pool.parallel_for(tasks, [&](int64_t task) { ++runs[task]; });
      for (const auto& n : runs) EXPECT_EQ(n, 1);
    }
  }
}

TEST(ThreadPool, RethrowsTheFirstExceptionAndStaysUsable) {
  ThreadPool pool(3);
  EXPECT_THROW(pool.parallel_for(100, [](int64_t task) {
    if (task == 5) throw std::runtime_error("task 5");
  }), std::runtime_error);
  std::atomic<int> runs = 0;
  pool.parallel_for(10, [&](int64_t) { ++runs; });
  EXPECT_EQ(runs, 10);
}

TEST(ThreadPool, CpuCountFollowsOmpNumThreads) {
  const char* before = std::getenv("OMP_NUM_THREADS");
  const std::string saved = before ? before : "";
  setenv("OMP_NUM_THREADS", "1,4", 1);
  EXPECT_EQ(available_cpus(), 1);
  before ? setenv("OMP_NUM_THREADS", saved.c_str(), 1) : unsetenv("OMP_NUM_THREADS");
  EXPECT_GE(available_cpus(), 1);
}

}  // namespace
}  // namespace halfstep
