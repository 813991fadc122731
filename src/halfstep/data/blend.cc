#include "halfstep/data/blend.h"

#include <fmt/core.h>

#include <cmath>

#include "halfstep/core/error.h"

namespace halfstep::data {
namespace {

constexpr int kRatioBits = 63;

int64_t share(int64_t samples, uint64_t ratio) {
  return static_cast<int64_t>(static_cast<unsigned __int128>(samples) * ratio >> kRatioBits);
}

}  // namespace

std::vector<uint64_t> blend_ratios(std::span<const double> weights) {
  if (weights.empty()) throw UsageError("blend: no data sources");
  for (const double w : weights) {
    if (!(w > 0) || !std::isfinite(w)) {
      throw UsageError(fmt::format("blend: weight {}, expected a positive number", w),
                       "leave a source out instead of giving it the weight 0");
    }
  }
  std::vector<uint64_t> ratios(weights.size());
  double rest = 0;
  for (size_t k = weights.size(); k-- > 0;) {
    rest += weights[k];
    // Exact 1 for the last source: rest is weights[k] itself there.
    ratios[k] = static_cast<uint64_t>(std::ldexp(weights[k] / rest, kRatioBits));
  }
  return ratios;
}

BlendLocation blend_locate(std::span<const uint64_t> ratios, int64_t index) {
  for (size_t k = 0; k < ratios.size(); ++k) {
    const int64_t before = share(index, ratios[k]);
    if (share(index + 1, ratios[k]) > before) return {static_cast<int64_t>(k), before};
    index -= before;
  }
  throw InternalError("blend_locate: the last ratio is not 1");
}

}  // namespace halfstep::data
