#include "halfstep/dist/replica_check.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <cstdint>
#include <vector>

namespace halfstep::dist {

uint64_t check_replicas(const optim::Arenas& arenas, comm::Communicator& ranks) {
  const size_t count = arenas.parameters().size();
  std::vector<uint64_t> sums(count * ranks.size());
  for (size_t p = 0; p < count; ++p) {
    const auto index = static_cast<int64_t>(p);
    const int64_t bytes = arenas.parameters()[p].numel() *
                          dtype_bytes(arenas.layout().arena_of(index).format.weight);
    sums[count * ranks.rank() + p] =
        XXH3_64bits(arenas.data(layout::MemoryClass::kWeight, index), static_cast<size_t>(bytes));
  }
  ranks.all_gather_in_place(std::as_writable_bytes(std::span(sums))).wait();
  for (int r = 1; r < ranks.size(); ++r) {
    for (size_t p = 0; p < count; ++p) {
      if (sums[count * r + p] == sums[p]) continue;
      throw Error(ExitCode::kInternal,
                  fmt::format("the weights of rank {} differ from those of rank 0, first in '{}'", r,
                              arenas.parameters()[p].name),
                  "resume from the last checkpoint; if it happens again, test the memory of that "
                  "machine");
    }
  }
  return XXH3_64bits(sums.data(), count * sizeof(uint64_t));
}

}  // namespace halfstep::dist
