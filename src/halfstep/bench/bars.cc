#include "halfstep/bench/bars.h"

#include <algorithm>

#include "halfstep/core/error.h"

namespace halfstep::bench {
namespace {

const Row& row_named(const std::vector<Row>& rows, std::string_view name) {
  const auto row =
      std::find_if(rows.begin(), rows.end(), [&](const Row& r) { return r.name == name; });
  if (row == rows.end()) throw InternalError("bench: no row " + std::string(name));
  return *row;
}

}  // namespace

// Where every row ran at the machine's bandwidth, the ratios would be those of the bytes: 28/18,
// 34/18 and 64/18 (1.56, 1.89, 3.56). The first two bars leave room for the noise's arithmetic; the
// third leaves none, since convert-compute-convert also pays for fresh memory in every step.
//
// A transformer's tensors are small enough for the temporaries of convert-compute-convert to come
// from the cache, so there the third bar is lower: 2.4 was measured on a quiet machine.
//
// That room is measured on AVX-512. With half the lanes the step is bound by its arithmetic: .87 ns
// per element and core even from L1 (Zen 3), of which no single unit is the limit: some 290
// instructions for 32 elements, with 16 registers to hold them. Two cores move its bytes in 1.0 to
// 1.4 ns, as the machine's memory allows at the time. Measured there on a quiet machine, when the
// step took 1.0 ns: .94 to 1.27, 1.31 to 1.76, 9.8 to 10.7 and .72 to .95. So the target is not met
// on AVX2 where memory is fast, and its bars are what a regression would break, a tenth under the
// worst of these.
std::vector<Bar> bars_of(const std::vector<Row>& rows, TensorSet set, double stream_gbps,
                         std::string_view implementation) {
  const bool wide = implementation == "avx512";
  const Row& split = row_named(rows, kSplitRow);
  const auto speedup = [&](std::string_view other) {
    return row_named(rows, other).timing.min_ms / split.timing.min_ms;
  };
  return {
      {"speed-up over torch's fused FP32 AdamW", speedup(kTorchFusedRow), wide ? 1.3 : 0.85},
      {"speed-up over the mixed-precision baseline", speedup(kMixedBaselineRow), wide ? 1.7 : 1.18},
      {"speed-up over convert-compute-convert", speedup(kConvertRow),
       set == TensorSet::kOneLarge ? 3.5 : 2.0},
      {"share of the machine's in-place stream", split.gbps / stream_gbps, wide ? 0.75 : 0.65},
  };
}

}  // namespace halfstep::bench
