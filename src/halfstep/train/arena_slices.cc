#include "halfstep/train/arena_slices.h"

#include <cstddef>

#include "halfstep/checkpoint/model_slices.h"

namespace halfstep::train {
namespace {

// Where the elements of a slice are. Of a sharded class the arenas hold just what is owned.
void* address(const optim::Arenas& arenas, const checkpoint::ModelSlice& slice) {
  if (slice.numel == 0) return nullptr;
  auto* data = static_cast<std::byte*>(arenas.data(slice.memory_class, slice.parameter));
  const bool sharded = layout::is_sharded(slice.memory_class);
  return sharded ? data : data + slice.start * dtype_bytes(slice.dtype);
}

}  // namespace

std::vector<checkpoint::TensorSlice> slices_to_save(const optim::Arenas& arenas, int64_t rank) {
  std::vector<checkpoint::TensorSlice> slices;
  for (const auto& slice : checkpoint::slices_to_save(arenas.layout(), arenas.parameters(), rank)) {
    slices.push_back({slice, address(arenas, slice)});
  }
  return slices;
}

std::vector<checkpoint::MutableSlice> slices_to_load(const optim::Arenas& arenas, int64_t rank,
                                                     bool with_state) {
  std::vector<checkpoint::MutableSlice> slices;
  for (const auto& slice :
       checkpoint::slices_to_load(arenas.layout(), arenas.parameters(), rank, with_state)) {
    slices.push_back({slice, address(arenas, slice)});
  }
  return slices;
}

int64_t bytes_to_save(const optim::Arenas& arenas, int64_t rank) {
  return checkpoint::total_bytes(
      checkpoint::slices_to_save(arenas.layout(), arenas.parameters(), rank));
}

int64_t bytes_to_save(const optim::Arenas& arenas) {
  int64_t bytes = 0;
  for (int64_t rank = 0; rank < arenas.layout().num_ranks(); ++rank) {
    bytes += bytes_to_save(arenas, rank);
  }
  return bytes;
}

}  // namespace halfstep::train
