// No kernel allocates (docs: the step needs no memory beyond the state). This program counts every
// operator new, whichever thread calls it.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "halfstep/kernels/adamw.h"
#include "halfstep/kernels/implementation.h"
#include "halfstep/kernels/vector_ops.h"

namespace {
std::atomic<int64_t> allocations{0};
}  // namespace

void* operator new(size_t size) {
  allocations.fetch_add(1);
  if (void* p = std::malloc(size)) return p;
  throw std::bad_alloc();
}
void* operator new(size_t size, std::align_val_t alignment) {
  allocations.fetch_add(1);
  const size_t unit = static_cast<size_t>(alignment);
  if (void* p = std::aligned_alloc(unit, (size + unit - 1) / unit * unit)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { std::free(p); }

namespace halfstep::kernels {
namespace {

template <typename Body>
int64_t allocations_of(Body&& body) {
  body();  // the choice of an implementation may allocate, once
  const int64_t before = allocations.load();
  body();
  return allocations.load() - before;
}

TEST(Allocation, TheCounterCounts) {
  // Called by name: a new-expression may be optimised away.
  EXPECT_EQ(allocations_of([] { ::operator delete(::operator new(8)); }), 1);
}

// Of the implementation in use.
void expect_no_allocation() {
  constexpr int64_t kN = 200'000;
  ThreadPool pool(2);
  std::vector<float> a(kN, 1.0f), b(kN, 1.0f), grad(kN, 0.1f);
  std::vector<uint16_t> w(kN), m(kN), v(kN), u(kN);
  std::vector<int16_t> remainder(kN);
  const NoiseRun noise{.stream = {.seed = 1}};
  NoiseRun init = noise;
  init.stream.purpose = NoisePurpose::kInit;
  const AdamwScalars scalars = adamw_scalars({}, 1, 1);
  const AdamwSlice slice{.weight = w.data(),
                         .master = remainder.data(),
                         .grad = grad.data(),
                         .exp_avg = m.data(),
                         .exp_avg_sq = v.data(),
                         .max_exp_avg_sq = u.data(),
                         .rows = 100,
                         .cols = kN / 100,
                         .global_cols = kN,
                         .t = 1,
                         .scalars = &scalars};
  const void* ranks[] = {a.data(), b.data()};
  const Rounding sr = Rounding::kStochastic;
  for (Dtype exp_avg_sq : {Dtype::kBF16, Dtype::kUE6M10}) {
    for (bool amsgrad : {false, true}) {  // with a template, and through tiles
      const AdamwFormat format{.master = MasterMode::kSplit,
                               .exp_avg = Dtype::kBF16,
                               .exp_avg_sq = exp_avg_sq,
                               .exp_avg_rounding = sr,
                               .exp_avg_sq_rounding = sr,
                               .amsgrad = amsgrad};
      EXPECT_EQ(allocations_of([&] { adamw_step(format, {&slice, 1}, 1, pool); }), 0);
      EXPECT_EQ(allocations_of([&] { rounding_health(format, {&slice, 1}, 1, pool); }), 0);
    }
  }
  EXPECT_EQ(allocations_of([&] {
              convert(w.data(), Dtype::kBF16, a.data(), Dtype::kF32, kN, sr, noise, pool);
              accumulate(w.data(), Dtype::kBF16, a.data(), Dtype::kF32, kN, sr, noise, pool);
              sum_squares(a.data(), Dtype::kF32, kN, pool);
              sum_ranks(a.data(), ranks, Dtype::kF32, kN, pool);
              split_master(w.data(), remainder.data(), a.data(), kN, pool);
              join_master(a.data(), w.data(), remainder.data(), kN, pool);
              init_normal(a.data(), Dtype::kF32, kN, 1, init, pool);
            }),
            0);
}

TEST(Allocation, NoKernelAllocates) {
  for (const ImplementationInfo& implementation : implementations()) {
    if (!implementation.supported) continue;
    SCOPED_TRACE(implementation.name);
    force_implementation(implementation.name);
    expect_no_allocation();
  }
}

}  // namespace
}  // namespace halfstep::kernels
