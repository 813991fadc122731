#include "halfstep/optim/memory_counter.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <thread>

namespace halfstep::optim {
namespace {

TEST(MemoryCounter, CountsTensorBytesExactly) {
  MemoryCounter& counter = MemoryCounter::instance();
  const int64_t live = counter.live_bytes();
  const int64_t allocations = counter.num_allocations();
  {
    const at::Tensor a = at::empty({1000, 3}, at::kFloat);
    EXPECT_EQ(counter.live_bytes() - live, 12'000);
    const at::Tensor b = at::empty({77}, at::kBFloat16);
    EXPECT_EQ(counter.live_bytes() - live, 12'000 + 154);
    const at::Tensor view = a.narrow(0, 0, 10);
    const at::Tensor nothing = at::empty({0}, at::kFloat);
    EXPECT_EQ(counter.live_bytes() - live, 12'000 + 154);
    EXPECT_EQ(counter.num_allocations() - allocations, 2);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data_ptr()) % 64, 0u);
  }
  EXPECT_EQ(counter.live_bytes(), live);
}

TEST(MemoryCounter, FollowsATensorThatGrows) {
  MemoryCounter& counter = MemoryCounter::instance();
  const int64_t live = counter.live_bytes();
  at::Tensor t = at::full({10}, 3.5, at::kFloat);
  t.resize_({1000});
  EXPECT_EQ(counter.live_bytes() - live, 4000);
  EXPECT_EQ(t[9].item<float>(), 3.5f);
  t = at::Tensor();
  EXPECT_EQ(counter.live_bytes(), live);
}

TEST(MemoryCounter, PeaksBelongToThePhaseThatSawThem) {
  MemoryCounter& counter = MemoryCounter::instance();
  counter.begin_phase(Phase::kSetup);
  counter.reset_peaks();
  const int64_t live = counter.live_bytes();
  EXPECT_EQ(counter.peak_bytes(Phase::kSetup), live);
  EXPECT_EQ(counter.peak_bytes(Phase::kStep), 0);

  counter.begin_phase(Phase::kForward);
  const at::Tensor kept = at::empty({1000}, at::kByte);
  { const at::Tensor transient = at::empty({5000}, at::kByte); }
  counter.begin_phase(Phase::kBackward);
  { const at::Tensor transient = at::empty({300}, at::kByte); }
  counter.begin_phase(Phase::kStep);
  counter.begin_phase(Phase::kForward);
  { const at::Tensor transient = at::empty({2000}, at::kByte); }  // less than the first time

  EXPECT_EQ(counter.peak_bytes(Phase::kForward) - live, 6000);
  EXPECT_EQ(counter.peak_bytes(Phase::kBackward) - live, 1300);
  EXPECT_EQ(counter.peak_bytes(Phase::kStep) - live, 1000);
  EXPECT_EQ(counter.peak_bytes() - live, 6000);
  counter.reset_peaks();
  EXPECT_EQ(counter.peak_bytes(), counter.live_bytes());
}

TEST(MemoryCounter, IsExactWhenThreadsAllocateTogether) {
  MemoryCounter& counter = MemoryCounter::instance();
  const int64_t live = counter.live_bytes();
  const int64_t allocations = counter.num_allocations();
  const auto work = [] {
    for (int i = 0; i < 1000; ++i) at::empty({64}, at::kByte);
  };
  std::thread other(work);
  work();
  other.join();
  EXPECT_EQ(counter.live_bytes(), live);
  EXPECT_EQ(counter.num_allocations() - allocations, 2000);
}

}  // namespace
}  // namespace halfstep::optim
