#include "halfstep/train/stop_request.h"

#include <unistd.h>

#include <cstring>

#include "halfstep/core/error.h"

namespace halfstep::train {
namespace {

volatile std::sig_atomic_t received = 0;

const char* name_of(int signal) {
  for (const StopSignal& stop : kStopSignals) {
    if (stop.number == signal) return stop.name;
  }
  return nullptr;
}

bool is_ignored(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_IGN;
}

void remember(int signal) {
  received = signal;
  // SA_RESETHAND has put the default action back for this one; do it for the others as well.
  for (const StopSignal& stop : kStopSignals) {
    struct sigaction now {};
    sigaction(stop.number, nullptr, &now);
    if (!is_ignored(now)) std::signal(stop.number, SIG_DFL);
  }
}

// A handler of the loop, with nothing received yet.
void (*new_request())(int) {
  received = 0;
  return remember;
}

// Only what a signal handler may call.
void end_now(int signal) {
  for (const char* text : {"halfstep: stopped by ", name_of(signal),
                           " outside of the training loop: there was nothing to save\n",
                           "  start it again with the same flags\n"}) {
    static_cast<void>(!::write(STDERR_FILENO, text, std::strlen(text)));
  }
  ::_exit(static_cast<int>(ExitCode::kInterrupted));
}

}  // namespace

StopHandlers::StopHandlers(void (*handler)(int), int flags) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  for (size_t i = 0; i < kStopSignals.size(); ++i) {
    const int number = kStopSignals[i].number;
    check(sigaction(number, nullptr, &before_[i]) == 0, "sigaction");
    if (number == SIGHUP && is_ignored(before_[i])) continue;
    check(sigaction(number, &action, nullptr) == 0, "sigaction");
  }
}

StopHandlers::~StopHandlers() {
  for (size_t i = 0; i < kStopSignals.size(); ++i) {
    sigaction(kStopSignals[i].number, &before_[i], nullptr);
  }
}

EndOnSignal::EndOnSignal() : handlers_(end_now, 0) {}

// The step and a save in progress go on: interrupted system calls are restarted.
StopRequest::StopRequest()
    : handlers_(new_request(), SA_RESTART | static_cast<int>(SA_RESETHAND)) {}

const char* StopRequest::signal_name() const { return name_of(received); }

}  // namespace halfstep::train
