// What a load has to do for each slice that was asked for, decided before anything is read: copy
// it, bring it to another dtype, or make it from the parameter's FP32 value; or why it cannot be
// had. Pure functions over the manifest.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "halfstep/checkpoint/manifest.h"
#include "halfstep/checkpoint/reader.h"
#include "halfstep/checkpoint/slice.h"

namespace halfstep::checkpoint {

// The stored slices of each tensor.
class StoredTensors {
 public:
  using Slices = std::vector<const StoredSlice*>;

  explicit StoredTensors(const Manifest& manifest);  // refers to the manifest's slices

  const Slices& find(TensorKind kind, std::string_view name) const;  // empty: not stored
  bool has(TensorKind kind, std::string_view name, Dtype dtype) const;
  const std::map<std::pair<TensorKind, std::string_view>, Slices>& all() const { return tensors_; }

 private:
  std::map<std::pair<TensorKind, std::string_view>, Slices> tensors_;
};

// Where the FP32 value of a parameter's weight is to be had (docs/numerics.md §6), best first.
enum class ValueSource : uint8_t { kNone, kMaster, kFp32Weight, kSplit, kBf16Weight };
// kBf16Weight only with `allow_lossy`: the bits below a BF16 weight are lost.
ValueSource value_source(const StoredTensors& stored, std::string_view name, bool allow_lossy);

struct PlannedSlice {
  const MutableSlice* request = nullptr;
  enum class How : uint8_t { kCopy, kConvert, kFromValue } how = How::kCopy;
  ValueSource value = ValueSource::kNone;  // of kFromValue
};

struct LoadPlan {
  std::vector<PlannedSlice> slices;
  std::vector<std::string> conversions;  // LoadReport::conversions
};

// Throws one InputError that lists every tensor which is missing, unexpected, or of another shape
// or dtype. `where` names the checkpoint in it.
LoadPlan plan_load(const StoredTensors& stored, std::span<const MutableSlice> requests,
                   const LoadOptions& options, const std::string& where);

}  // namespace halfstep::checkpoint
