// Brings the weights that other ranks have updated here: an all-gather of each bucket, in place in
// the weights (docs/distributed.md). With overlap they are started together after the step, and
// each is waited for when the next forward needs its first parameter; buckets come in the order in
// which forward asks for them.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "halfstep/comm/communicator.h"
#include "halfstep/optim/arenas.h"

namespace halfstep::dist {

class ParameterGather {
 public:
  // Everything given must outlive this object.
  ParameterGather(optim::Arenas& arenas, comm::Communicator& ranks, bool overlap);

  // After an optimizer step: without overlap all weights are complete on return.
  void start();
  // Before weights are read: parameters [begin, end) are complete on return. Throws CommError; the
  // weights are undefined then, and no checkpoint may be made of them.
  void wait_for(int64_t begin, int64_t end);
  void wait_for_all();

  bool overlaps() const { return overlap_; }
  // Time spent waiting since it was last asked for.
  double take_wait_ms() { return std::exchange(wait_ms_, 0); }

 private:
  void wait_for_bucket(int64_t bucket);

  optim::Arenas& arenas_;
  comm::Communicator& ranks_;
  bool overlap_;
  std::vector<comm::Work> works_;  // by bucket
  double wait_ms_ = 0;
};

}  // namespace halfstep::dist
