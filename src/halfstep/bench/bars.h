// What `halfstep bench --check` demands of the measured rows. Pure functions of the times, so that
// they can be tested without running anything.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "halfstep/bench/measure.h"

namespace halfstep::bench {

struct Row {
  std::string name;
  Timing timing;
  double bytes_per_element = 0;  // that the step has to move
  double gbps = 0;               // at the minimum
};

// The rows that bars compare.
inline constexpr std::string_view kSplitRow = "split/bf16/bf16/nearest+stochastic";
inline constexpr std::string_view kTorchFusedRow = "torch_fused_fp32";
inline constexpr std::string_view kMixedBaselineRow = "mixed_baseline";
inline constexpr std::string_view kConvertRow = "convert_compute_convert";

struct Bar {
  std::string what;
  double measured = 0, required = 0;
  bool met() const { return measured >= required; }
};

// The bars of the split row among the rows of one set of tensors, for the implementation of the
// kernels that ran ("avx512", "avx2", …). A step may use at most kMaxExtraBytes beyond its tensors.
enum class TensorSet { kOneLarge, kTransformer };
std::vector<Bar> bars_of(const std::vector<Row>& rows, TensorSet set, double stream_gbps,
                         std::string_view implementation);
inline constexpr int64_t kMaxExtraBytes = 8 << 20;

}  // namespace halfstep::bench
