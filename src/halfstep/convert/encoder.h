// Brings pieces of a source to the element types of a target, and counts what that costs. A tensor
// that is stored as it is asked for is copied; anything else is made from FP32 values, rounded to
// nearest. (Stochastic rounding is for errors that add up from step to step; a conversion rounds
// once, and nearest is the smaller error.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "halfstep/convert/report.h"
#include "halfstep/convert/source.h"

namespace halfstep::convert {

// One tensor of the target.
struct Target {
  TensorKind kind = TensorKind::kWeight;
  int64_t parameter = 0;
  Dtype dtype = Dtype::kF32;
  // Of a BF16 weight: the target has its FP32 value too (so its rounding loses nothing), or it is
  // all that is left of one. Both are made from that value: a weight and its remainder must be of
  // one number.
  bool from_value = false;
  bool rounding_counts = true;
};

class Encoder {
 public:
  explicit Encoder(Source& source) : source_(source) {}

  // All bytes of `out` are elements of the target from `first` on.
  void encode(const Target& target, int64_t first, std::span<std::byte> out);

  // What has been encoded so far: the counts of a class. The remainder is counted as kMaster.
  const ClassReport& counts(TensorKind kind) { return counts_[kind]; }

 private:
  void encode_remainder(const Piece& piece, int16_t* out);
  void encode_values(const Target& target, const Piece& piece, void* out);

  Source& source_;
  std::map<TensorKind, ClassReport> counts_;
  std::vector<float> values_;
  std::vector<uint16_t> weights_;
};

}  // namespace halfstep::convert
