#include "halfstep/dist/replica_check.h"

#include <fmt/format.h>

#include <vector>

#include "halfstep/comm/together.h"
#include "halfstep/io/checksum.h"

namespace halfstep::dist {

uint64_t check_replicas(const optim::Arenas& arenas, comm::Communicator& ranks) {
  std::vector<uint64_t> sums;  // by parameter
  std::vector<double> halves;  // the same: a double holds half of one
  for (int64_t p = 0; p < std::ssize(arenas.parameters()); ++p) {
    const at::Tensor weight = arenas.view(layout::MemoryClass::kWeight, p);
    sums.push_back(io::checksum(weight.const_data_ptr(), weight.nbytes()));
    halves.push_back(static_cast<double>(sums.back() >> 32));
    halves.push_back(static_cast<double>(sums.back() & 0xFFFFFFFF));
  }
  const std::vector<double> all = comm::gather(ranks, halves);
  for (size_t i = halves.size(); i < all.size(); ++i) {
    const size_t half = i % halves.size();
    if (all[i] == all[half]) continue;
    throw Error(ExitCode::kInternal,
                fmt::format("the weights of rank {} differ from those of rank 0, first in '{}'",
                            i / halves.size(), arenas.parameters()[half / 2].name),
                "resume from the last checkpoint; if it happens again, test the memory of that "
                "machine");
  }
  return io::checksum(sums.data(), sums.size() * sizeof(uint64_t));
}

}  // namespace halfstep::dist
