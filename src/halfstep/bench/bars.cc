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
// That room is measured on AVX-512. With half the lanes the arithmetic takes 1.0 ns per element and
// core even from L1 (Zen 3), 33 ms of the 41 ms in which two cores move the bytes of 64 Mi
// elements, and the two overlap only in part; torch's step has no noise to compute. So narrower
// vectors get lower bars, still above 1: a step in 16 bits is never slower than one in FP32.
std::vector<Bar> bars_of(const std::vector<Row>& rows, double stream_gbps,
                         std::string_view implementation) {
  const bool wide = implementation == "avx512";
  const Row& split = row_named(rows, kSplitRow);
  const auto speedup = [&](std::string_view other) {
    return row_named(rows, other).timing.min_ms / split.timing.min_ms;
  };
  return {
      {"speed-up over torch's fused FP32 AdamW", speedup(kTorchFusedRow), wide ? 1.3 : 1.05},
      {"speed-up over the mixed-precision baseline", speedup(kMixedBaselineRow), wide ? 1.7 : 1.4},
      {"speed-up over convert-compute-convert", speedup(kConvertRow), 3.5},
      {"share of the machine's in-place stream", split.gbps / stream_gbps, wide ? 0.75 : 0.7},
  };
}

}  // namespace halfstep::bench
