#include "halfstep/convert/encoder.h"

#include <algorithm>
#include <cmath>

#include "halfstep/checkpoint/load_slices.h"
#include "halfstep/core/bf16.h"
#include "halfstep/core/split_weight.h"
#include "halfstep/core/ue6m10.h"
#include "halfstep/kernels/vector_ops.h"

namespace halfstep::convert {
namespace {

void count_error(float before, float after, ClassReport& counts) {
  const double error =
      std::fabs(static_cast<double>(after) - before) / std::fabs(static_cast<double>(before));
  counts.max_relative_error = std::max(counts.max_relative_error, error);
}

void count_rounding(const float* before, const uint16_t* after, Dtype dtype, int64_t n,
                    ClassReport& counts) {
  for (int64_t i = 0; i < n; ++i) {
    const float x = before[i];
    const float y = dtype == Dtype::kBF16 ? bf16_decode(after[i]) : ue6m10_decode(after[i]);
    if (x == y || !std::isfinite(x)) continue;
    if (y == 0) {
      ++counts.became_zero;
    } else if (dtype == Dtype::kUE6M10 ? ue6m10_saturates(x) : !std::isfinite(y)) {
      ++counts.saturated;
    } else {
      count_error(x, y, counts);
    }
  }
}

}  // namespace

void Encoder::encode(const Target& target, int64_t first, std::span<std::byte> out) {
  const Piece piece{target.kind, target.parameter, first,
                    std::ssize(out) / dtype_bytes(target.dtype)};
  const bool copied = source_.dtype(target.kind, target.parameter) == target.dtype;
  if (copied && !target.from_value) {
    source_.read(piece, out.data());
  } else if (target.kind == TensorKind::kRemainder) {
    encode_remainder(piece, reinterpret_cast<int16_t*>(out.data()));
  } else {
    encode_values(target, piece, out.data());
  }
}

void Encoder::encode_remainder(const Piece& piece, int16_t* out) {
  values_.resize(static_cast<size_t>(piece.count));
  weights_.resize(static_cast<size_t>(piece.count));
  source_.read_values(piece, values_.data());
  const int64_t ties = kernels::split_master(weights_.data(), out, values_.data(), piece.count);
  if (ties == 0) return;
  ClassReport& counts = counts_[TensorKind::kMaster];
  counts.lost_ulp += ties;
  for (size_t i = 0; i < values_.size(); ++i) {
    const float joined = join_f32(weights_[i], out[i]);
    if (joined != values_[i] && std::isfinite(values_[i])) count_error(values_[i], joined, counts);
  }
}

void Encoder::encode_values(const Target& target, const Piece& piece, void* out) {
  if (target.dtype == Dtype::kF32) {
    source_.read_values(piece, static_cast<float*>(out));
    return;
  }
  values_.resize(static_cast<size_t>(piece.count));
  source_.read_values(piece, values_.data());
  if (target.dtype == Dtype::kUE6M10) {
    checkpoint::check_ue6m10_values(values_, piece.kind,
                                    source_.parameters()[static_cast<size_t>(piece.parameter)].name,
                                    piece.first, "");
  }
  kernels::convert(out, target.dtype, values_.data(), Dtype::kF32, piece.count, Rounding::kNearest,
                   {});
  if (!target.rounding_counts) return;
  count_rounding(values_.data(), static_cast<const uint16_t*>(out), target.dtype, piece.count,
                 counts_[piece.kind]);
}

}  // namespace halfstep::convert
