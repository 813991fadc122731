// Ranks as threads of this process: what most tests of distributed code run on, and a simulated
// link for measuring what overlap hides.
//
// Stricter than the wire where a test should notice: receive buffers are filled with 0xff (NaN in
// every float format) when an operation starts, and send buffers are read as late as wait().
// Nobody hangs: when a rank throws, or ends while others still wait for it, every pending and every
// later operation of the group throws CommError with that first cause. Cheap enough for hundreds of
// ranks; it starts no thread of its own.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <string>

#include "halfstep/comm/communicator.h"

namespace halfstep::comm {

// Every rank has one outgoing link. An operation starts when all its ranks have started it; the
// bytes that a rank sends to others then queue on its link, bytes / bytes_per_second, and arrive
// latency_seconds after the last one left. A broadcast leaves the root once per other rank. Time is
// slept away in wait(), so a rank that computes in between really hides it.
struct LinkModel {
  double bytes_per_second = std::numeric_limits<double>::infinity();
  double latency_seconds = 0;
};

class ThreadGroup {
 public:
  explicit ThreadGroup(int size, LinkModel link = {});
  ~ThreadGroup();

  // The communicator of `rank`, to be used by one thread; asked for once. Destroying it says that
  // the rank has ended. It may outlive the group object.
  std::unique_ptr<Communicator> communicator(int rank);

  // Says that `rank` failed: the others get CommError("rank R failed: CAUSE"). The first call
  // counts.
  void fail(int rank, const std::string& cause);

 private:
  friend class ThreadCommunicator;
  class State;
  std::shared_ptr<State> state_;
};

// Runs `body` on `size` ranks, each in a thread of its own, and returns when all have ended. What
// was thrown first is thrown again.
void run_ranks(int size, const std::function<void(Communicator&)>& body, LinkModel link = {});

}  // namespace halfstep::comm
