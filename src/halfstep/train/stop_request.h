// Turns SIGINT and SIGTERM into a request that the loop reads at each step boundary, so that it can
// save and stop. A second signal ends the process at once. One object at a time; it restores the
// earlier handlers when it goes.
#pragma once

#include <csignal>

namespace halfstep::train {

class StopRequest {
 public:
  StopRequest();
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  // "SIGINT", "SIGTERM", or nullptr if none came.
  const char* signal_name() const;

 private:
  struct sigaction old_interrupt_ {
  }, old_terminate_{};
};

}  // namespace halfstep::train
