#include "halfstep/checkpoint/model_slices.h"

#include <optional>

#include "halfstep/core/error.h"

namespace halfstep::checkpoint {
namespace {

// What a memory class is called in a checkpoint. Gradients are not stored.
std::optional<TensorKind> stored_kind(layout::MemoryClass c, Dtype dtype) {
  switch (c) {
    case layout::MemoryClass::kWeight:
      return TensorKind::kWeight;
    case layout::MemoryClass::kGradient:
      return std::nullopt;
    case layout::MemoryClass::kMaster:
      return dtype == Dtype::kI16 ? TensorKind::kRemainder : TensorKind::kMaster;
    case layout::MemoryClass::kExpAvg:
      return TensorKind::kExpAvg;
    case layout::MemoryClass::kExpAvgSq:
      return TensorKind::kExpAvgSq;
    case layout::MemoryClass::kMaxExpAvgSq:
      return TensorKind::kMaxExpAvgSq;
  }
  return std::nullopt;
}

std::vector<ModelSlice> slices_of(const layout::Layout& layout,
                                  std::span<const arch::Parameter> parameters, int64_t rank,
                                  bool with_state, bool whole_weights) {
  check(parameters.size() == layout.locations.size(), "checkpoint: the layout of another model");
  std::vector<layout::ShardSlice> owned(parameters.size());  // of length 0: nothing
  for (const layout::ShardSlice& slice : layout.shard(rank)) owned[slice.parameter] = slice;
  std::vector<ModelSlice> slices;
  for (size_t p = 0; p < parameters.size(); ++p) {
    const layout::StorageFormat& format = layout.arena_of(static_cast<int64_t>(p)).format;
    for (const layout::MemoryClass c : layout::kMemoryClasses) {
      const auto kind = stored_kind(c, format.dtype(c));
      if (!kind || format.bytes_per_element(c) == 0) continue;
      if (!is_weight_kind(*kind) && !with_state) continue;
      ModelSlice slice;
      static_cast<Slice&>(slice) =
          whole_slice(*kind, parameters[p].name, parameters[p].shape, format.dtype(c));
      if (c != layout::MemoryClass::kWeight || !whole_weights) {
        slice.start = owned[p].first;
        slice.numel = owned[p].numel;
      }
      slice.parameter = static_cast<int64_t>(p);
      slice.memory_class = c;
      slices.push_back(std::move(slice));
    }
  }
  return slices;
}

}  // namespace

std::vector<ModelSlice> slices_to_save(const layout::Layout& layout,
                                       std::span<const arch::Parameter> parameters, int64_t rank) {
  return slices_of(layout, parameters, rank, /*with_state=*/true, /*whole_weights=*/false);
}

std::vector<ModelSlice> slices_to_load(const layout::Layout& layout,
                                       std::span<const arch::Parameter> parameters, int64_t rank,
                                       bool with_state) {
  return slices_of(layout, parameters, rank, with_state, /*whole_weights=*/true);
}

int64_t total_bytes(std::span<const ModelSlice> slices) {
  int64_t bytes = 0;
  for (const ModelSlice& slice : slices) bytes += slice.bytes();
  return bytes;
}

}  // namespace halfstep::checkpoint
