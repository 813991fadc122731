// Work that either succeeds on every rank or on none: what every rank has to know before the next
// common step (a checkpoint's shards before its manifest). And texts from all ranks to one.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "halfstep/comm/communicator.h"

namespace halfstep::comm {

// Runs `body` on each rank, and returns when it has ended on all of them. Where it threw, that rank
// throws the same again; the others throw an Error of the same exit code that names the first rank
// that failed and what it said. A CommError is thrown at once: nobody can be told of it any more.
void together(Communicator& ranks, const std::function<void()>& body);

// Every rank's text, by rank, on rank 0; nothing on the others.
std::vector<std::string> gather_texts(Communicator& ranks, std::string_view text);

// The numbers of every rank, one rank's after the other's: as many from each, in one exchange that
// counts as control traffic.
std::vector<double> gather(Communicator& ranks, std::span<const double> own);

}  // namespace halfstep::comm
