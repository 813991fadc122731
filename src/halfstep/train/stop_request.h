// What SIGINT, SIGTERM and SIGHUP do to training. Outside of its loop there is nothing to save, and
// they end the process at once (EndOnSignal); in the loop they are a request that it reads at each
// step boundary, so that it can save and stop (StopRequest), and a second signal ends the process
// at once. A SIGHUP that whoever started us ignores (nohup) stays ignored.
// One object of each kind at a time; they restore the earlier handlers when they go.
#pragma once

#include <array>
#include <csignal>

namespace halfstep::train {

struct StopSignal {
  int number;
  const char* name;
};
inline constexpr std::array<StopSignal, 3> kStopSignals{
    {{SIGINT, "SIGINT"}, {SIGTERM, "SIGTERM"}, {SIGHUP, "SIGHUP"}}};

// Handlers of all of them, for as long as it lives.
class StopHandlers {
 public:
  StopHandlers(void (*handler)(int), int flags);
  ~StopHandlers();
  StopHandlers(const StopHandlers&) = delete;
  StopHandlers& operator=(const StopHandlers&) = delete;

 private:
  std::array<struct sigaction, kStopSignals.size()> before_{};
};

// Ends the process with kInterrupted and a line on standard error.
class EndOnSignal {
 public:
  EndOnSignal();

 private:
  StopHandlers handlers_;
};

class StopRequest {
 public:
  StopRequest();

  // "SIGINT", "SIGTERM", "SIGHUP", or nullptr if none came.
  const char* signal_name() const;

 private:
  StopHandlers handlers_;
};

}  // namespace halfstep::train
