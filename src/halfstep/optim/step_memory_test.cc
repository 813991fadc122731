// What a step costs in memory: nothing. Counts tensor allocations and every operator new of this
// program, libtorch's included.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "halfstep/optim/memory_counter.h"
#include "halfstep/optim/test_support.h"

namespace {

std::atomic<int64_t> num_news{0};

void* counted(std::size_t bytes, std::size_t alignment) {
  num_news.fetch_add(1, std::memory_order_relaxed);
  void* const made = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (made == nullptr) throw std::bad_alloc();
  return made;
}

}  // namespace

void* operator new(std::size_t bytes) { return counted(std::max<std::size_t>(bytes, 1), 16); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted(std::max<std::size_t>(bytes, 1), static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace halfstep::optim {
namespace {

using layout::MemoryClass;

TEST(StepMemory, TheCounterSeesANew) {
  const int64_t before = num_news.load();
  delete new std::string(100, 'x');
  EXPECT_GE(num_news.load() - before, 2);
}

TEST(StepMemory, AStepAllocatesNothing) {
  MemoryCounter& counter = MemoryCounter::instance();
  for (const auto& format :
       {testing::kBaseline, testing::kO2, testing::kO2Split, testing::kO2NoMaster}) {
    const auto arenas = testing::make_arenas(testing::small_model(),
                                             {.format = format, .keep_fp32 = testing::is_norm});
    init_weights(*arenas, 1);
    GradientBuffer gradients(*arenas, {.fusion = false});
    AdamW adamw(*arenas, {});
    for (int64_t step = 0; step < 3; ++step) {
      gradients.begin_step(adamw.updates());
      // One parameter without a gradient; from the second step on it holds an old one.
      for (int64_t p = step; p < std::ssize(arenas->parameters()); ++p) {
        gradients.add(p, testing::gradient(*arenas, p, step));
      }
      const int64_t live = counter.live_bytes();
      const int64_t tensors = counter.num_allocations();
      const int64_t news = num_news.load();
      counter.begin_phase(Phase::kStep);
      counter.reset_peaks();
      const StepResult result = adamw.step(gradients, {.lr = 1e-3, .health = step == 2});
      EXPECT_EQ(num_news.load() - news, 0) << "step " << step;
      EXPECT_EQ(counter.num_allocations() - tensors, 0);
      EXPECT_EQ(counter.peak_bytes(Phase::kStep), live);
      EXPECT_FALSE(result.skipped);
    }
  }
}

TEST(StepMemory, ArenasStayWhereTheyAre) {
  const MemoryCounter& counter = MemoryCounter::instance();
  const auto arenas = testing::make_arenas(testing::small_model(),
                                           {.format = testing::kO2, .keep_fp32 = testing::is_norm});
  GradientBuffer gradients(*arenas, {.fusion = false, .micro_batches = 2});
  AdamW adamw(*arenas, {});
  const auto addresses = [&] {
    std::vector<const void*> all;
    for (int64_t a = 0; a < std::ssize(arenas->layout().arenas); ++a) {
      for (const MemoryClass c : layout::kMemoryClasses) {
        if (arenas->flat(c, a).defined()) all.push_back(arenas->base(c, a));
      }
    }
    for (const at::Tensor& w : arenas->weights()) all.push_back(w.const_data_ptr());
    return all;
  };
  const auto before = addresses();
  int64_t live = 0;
  for (int64_t step = 0; step < 100; ++step) {
    gradients.begin_step(adamw.updates());
    for (int64_t k = 0; k < 2; ++k) {
      gradients.begin_micro_batch(k);
      // Activations of another length each time.
      const at::Tensor x = at::ones({1 + (step * 37 + k * 11) % 97, 24});
      x.matmul(arenas->weights()[4].to(at::kFloat).t()).sum().backward();
    }
    adamw.step(gradients, {.lr = 1e-3});
    if (step == 10) live = counter.live_bytes();
  }
  EXPECT_EQ(addresses(), before);
  EXPECT_EQ(counter.live_bytes(), live);
}

}  // namespace
}  // namespace halfstep::optim
