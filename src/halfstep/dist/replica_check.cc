#include "halfstep/dist/replica_check.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <cstdint>
#include <vector>

namespace halfstep::dist {

uint64_t check_replicas(const optim::Arenas& arenas, comm::Communicator& ranks) {
  const size_t count = arenas.parameters().size();
  std::vector<uint64_t> own(count);
  for (size_t p = 0; p < count; ++p) {
    const auto index = static_cast<int64_t>(p);
    const int64_t bytes = arenas.parameters()[p].numel() *
                          dtype_bytes(arenas.layout().arena_of(index).format.weight);
    own[p] = XXH3_64bits(arenas.data(layout::MemoryClass::kWeight, index),
                         static_cast<size_t>(bytes));
  }
  // As halves, which a double holds: each rank's stand in a place of their own, 0 in the others'.
  std::vector<double> halves(2 * count * ranks.size());
  double* const mine = halves.data() + 2 * count * ranks.rank();
  for (size_t p = 0; p < count; ++p) {
    mine[2 * p] = static_cast<double>(own[p] >> 32);
    mine[2 * p + 1] = static_cast<double>(own[p] & 0xFFFFFFFF);
  }
  ranks.all_reduce_sum(halves);
  for (int r = 1; r < ranks.size(); ++r) {
    for (size_t i = 0; i < 2 * count; ++i) {
      if (halves[2 * count * r + i] == halves[i]) continue;
      throw Error(ExitCode::kInternal,
                  fmt::format("the weights of rank {} differ from those of rank 0, first in '{}'", r,
                              arenas.parameters()[i / 2].name),
                  "resume from the last checkpoint; if it happens again, test the memory of that "
                  "machine");
    }
  }
  return XXH3_64bits(own.data(), count * sizeof(uint64_t));
}

}  // namespace halfstep::dist
