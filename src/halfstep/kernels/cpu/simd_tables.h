// The kernel tables of the SIMD targets in this build, widest first, for implementation.cc.
#pragma once

#include <vector>

#include "halfstep/kernels/kernel_table.h"

namespace halfstep::kernels {

struct SimdImplementation {
  const KernelTable* table;
  bool supported;     // by this machine and its operating system
  const char* needs;  // the instruction sets, for messages
};

std::vector<SimdImplementation> simd_implementations();

}  // namespace halfstep::kernels
