// Whether all ranks hold the same weights: a 64-bit checksum of each parameter, compared. A
// difference means that memory or wire have lost a bit, or that ranks have run apart by a fault.
#pragma once

#include <cstdint>

#include "halfstep/comm/communicator.h"
#include "halfstep/optim/arenas.h"

namespace halfstep::dist {

// Reads all weights, which must be complete, and returns the checksum of them all. Throws
// Error(kInternal) on every rank, naming the first rank that differs from rank 0 and its first
// parameter; CommError.
uint64_t check_replicas(const optim::Arenas& arenas, comm::Communicator& ranks);

}  // namespace halfstep::dist
