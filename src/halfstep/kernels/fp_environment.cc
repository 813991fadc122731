#include "halfstep/kernels/fp_environment.h"

#if !defined(__x86_64__)
#error "fp_environment.cc: say here how to flush subnormals on this machine"
#endif
#include <xmmintrin.h>

namespace halfstep::kernels {
namespace {

constexpr uint32_t kAllExceptionsMasked = 0x1F80;  // and rounding to nearest
constexpr uint32_t kFlushToZero = 0x8000;
constexpr uint32_t kDenormalsAreZero = 0x0040;

void compiler_barrier() { asm volatile("" ::: "memory"); }

}  // namespace

[[gnu::noinline]] KernelFpEnvironment::KernelFpEnvironment() : saved_(_mm_getcsr()) {
  compiler_barrier();
  _mm_setcsr(kAllExceptionsMasked | kFlushToZero | kDenormalsAreZero);
  compiler_barrier();
}

[[gnu::noinline]] KernelFpEnvironment::~KernelFpEnvironment() {
  compiler_barrier();
  _mm_setcsr(saved_);
  compiler_barrier();
}

}  // namespace halfstep::kernels
