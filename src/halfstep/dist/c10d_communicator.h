// comm::Communicator over c10d, by its Gloo backend: ranks as processes, on one machine or many.
// The one place where halfstep meets Gloo.
//
// Nothing is copied on the way. Gloo's own all-gather gathers into a temporary as large as the
// result and copies that; ours is made of messages straight into place. c10d cannot say when a
// message is through: done() of an all-gather, a send or a receive says false until wait(). A rank
// that throws drops its messages; of an all-to-all that it has started the others must have started
// theirs.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "halfstep/comm/communicator.h"
#include "halfstep/dist/store.h"

namespace halfstep::dist {

struct GlooOptions {
  // Where this rank listens for the others: an address of this machine, or the name of a network
  // interface, which wins.
  std::string address = "127.0.0.1";
  std::string interface = {};
  // An operation that takes longer is a failure.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
};

// Returns when all ranks have called it with the same store: connections to all are open then.
std::unique_ptr<comm::Communicator> connect_gloo(Store& store, int rank, int size,
                                                 const GlooOptions& options);

}  // namespace halfstep::dist
