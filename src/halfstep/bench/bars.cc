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
std::vector<Bar> bars_of(const std::vector<Row>& rows, double stream_gbps) {
  const Row& split = row_named(rows, kSplitRow);
  const auto speedup = [&](std::string_view other) {
    return row_named(rows, other).timing.min_ms / split.timing.min_ms;
  };
  return {
      {"speed-up over torch's fused FP32 AdamW", speedup(kTorchFusedRow), 1.3},
      {"speed-up over the mixed-precision baseline", speedup(kMixedBaselineRow), 1.7},
      {"speed-up over convert-compute-convert", speedup(kConvertRow), 3.5},
      {"share of the machine's in-place stream", split.gbps / stream_gbps, 0.75},
  };
}

}  // namespace halfstep::bench
