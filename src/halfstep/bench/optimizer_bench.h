// The measurements of `halfstep bench`: the AdamW step in our formats against the machine's
// in-place stream and against what else one could run with torch, in one interleaved run over
// shared tensors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "halfstep/bench/bars.h"

namespace halfstep::bench {

struct BenchOptions {
  int64_t elements = int64_t{64} << 20;
  int repeats = 15;
  int threads = 1;
};

// The rows over one set of tensors, and the memory that a split step needs beyond them.
struct TensorsReport {
  TensorSet set = TensorSet::kOneLarge;
  int64_t tensors = 0, elements = 0;
  std::vector<Row> rows;
  int64_t extra_bytes = 0;
};

struct BenchReport {
  double stream_gbps = 0;    // the best of x ← a·x over 1, 2 and 4 arrays
  std::vector<Row> streams;  // each of them
  TensorsReport one;         // one tensor
  // About as many elements in the tensors of a transformer.
  TensorsReport list;
};

// Sets torch's and the kernels' threads. Takes 28 bytes of memory per element, and 12 more
// while convert-compute-convert runs.
BenchReport run_optimizer_bench(const BenchOptions& options);

}  // namespace halfstep::bench
