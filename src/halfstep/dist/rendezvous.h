// How a process becomes a rank of a run, and how it leaves: the store, the watchdog, the version
// check and the communicator, in the one order in which they are safe. Called by the commands that
// run on many ranks, once, on the main thread.
//
//   Group group(read_launch(process_environment()), options);
//   try {
//     work(group.communicator());
//     group.finish();
//   } catch (...) {
//     group.end_with(std::current_exception());  // tells the others; throws what this process
//     should say
//   }
//
// The catch must come before anything that holds a started operation is destroyed, since that waits
// for the others.
#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <string>

#include "halfstep/comm/communicator.h"
#include "halfstep/dist/launch.h"
#include "halfstep/dist/store.h"
#include "halfstep/dist/watchdog.h"

namespace halfstep::dist {

struct GroupOptions {
  // Of one operation, and of joining.
  std::chrono::milliseconds distributed_timeout = std::chrono::minutes(10);
  WatchdogOptions watchdog = {};
  std::string version = {};  // must be the same on all ranks
};

class Group {
 public:
  // Returns when all ranks have joined. A single rank needs nothing of all this and gets a
  // communicator that moves nothing.
  Group(const Launch& launch, GroupOptions options);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  comm::Communicator& communicator() { return *communicator_; }

  // Returns when all ranks have come here; CommError if one fails meanwhile.
  void finish();

  // This rank ends because of `error`. If it is this rank's own, the others are told and it is
  // thrown again; a CommError is replaced by one that says which rank failed first and why.
  [[noreturn]] void end_with(const std::exception_ptr& error);

 private:
  void join(const Launch& launch, const GroupOptions& options);

  // Order matters: the communicator goes first, the store that rank 0 serves last.
  std::unique_ptr<Store> store_;
  std::unique_ptr<Watchdog> watchdog_;
  std::unique_ptr<comm::Communicator> communicator_;
};

}  // namespace halfstep::dist
