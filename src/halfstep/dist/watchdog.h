// Ends this process when another rank has failed or vanished, even while it sits in a collective,
// and finds out which rank failed first (docs/interface.md §2.4).
//
// Two threads per process. The messenger has a store connection of its own: once per interval it
// raises this rank's heartbeat, reads that of the next rank in the ring, and looks whether a
// failure has been reported. The judge only looks at the clock and at what the messenger last
// heard, and never touches the network, so a dead link cannot stop it. Time in which this process
// did not run is not held against others.
//
// What ends the process, with exit code 5 and one line on stderr: a failure that a rank reported;
// no heartbeat of the next rank for `timeout`; no answer of the store for `timeout`, or a lost
// connection to it; this process not having run for `timeout`, as the others have then taken it for
// dead. The main thread first gets `grace` to end by itself: it may be about to report an error of
// its own. A rank that is slow but beats is never ended.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "halfstep/core/error.h"
#include "halfstep/dist/store.h"

namespace halfstep::dist {

struct WatchdogOptions {
  std::chrono::milliseconds timeout = std::chrono::seconds(20);
  std::chrono::milliseconds interval = std::chrono::seconds(1);
  std::chrono::milliseconds grace = std::chrono::seconds(3);
  std::string store_server = "rank 0";  // who serves the store, for messages
  // Ends the process; tests put something else here. Called once, by the judge.
  std::function<void(ExitCode code, const std::string& cause)> end_process = print_and_exit;

  static void print_and_exit(ExitCode code, const std::string& cause);
};

class Watchdog {
 public:
  Watchdog(std::unique_ptr<Store> connection, int rank, int size, WatchdogOptions options = {});
  // Stops watching. Without finish() the others take this rank for dead.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // This rank has failed and is about to end with `code`. Returns when the other ranks know, but
  // within a few intervals. Returns the first failure of all, which need not be this one.
  std::string report_failure(const std::string& what, ExitCode code);

  // For a rank whose communication broke: waits for the rank that failed first to say so, or, where
  // it cannot, finds out by heartbeat which rank is gone. "" if nobody is missing.
  std::string first_cause();

  // This rank has nothing more to do; returns when that is so for all. CommError if one failed.
  void finish();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace halfstep::dist
