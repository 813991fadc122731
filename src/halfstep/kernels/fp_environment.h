// The floating-point environment that all kernels compute in (docs/numerics.md §1): subnormal
// inputs and results of arithmetic are flushed to zero, results are rounded to nearest, nothing
// traps. Every worker thread of a driver sets it around its share of the work.
#pragma once

#include <cstdint>

namespace halfstep::kernels {

// Sets the environment for its lifetime on this thread and restores the caller's, flags included.
// Constructor and destructor are never inlined, so that the compiler cannot move arithmetic across
// them: put the arithmetic into a function that is called in between, not into the same block.
class KernelFpEnvironment {
 public:
  KernelFpEnvironment();
  ~KernelFpEnvironment();
  KernelFpEnvironment(const KernelFpEnvironment&) = delete;
  KernelFpEnvironment& operator=(const KernelFpEnvironment&) = delete;

 private:
  uint32_t saved_;
};

}  // namespace halfstep::kernels
