#include "halfstep/train/stop_request.h"

#include "halfstep/core/error.h"

namespace halfstep::train {
namespace {

volatile std::sig_atomic_t received = 0;

void on_signal(int signal) {
  received = signal;
  // SA_RESETHAND has put the default action back for this one; do it for the other as well.
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

}  // namespace

StopRequest::StopRequest() {
  received = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  // The step and a save in progress go on: interrupted system calls are restarted.
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  check(sigaction(SIGINT, &action, &old_interrupt_) == 0, "sigaction(SIGINT)");
  check(sigaction(SIGTERM, &action, &old_terminate_) == 0, "sigaction(SIGTERM)");
}

StopRequest::~StopRequest() {
  sigaction(SIGINT, &old_interrupt_, nullptr);
  sigaction(SIGTERM, &old_terminate_, nullptr);
}

const char* StopRequest::signal_name() const {
  switch (received) {
    case SIGINT:
      return "SIGINT";
    case SIGTERM:
      return "SIGTERM";
    default:
      return nullptr;
  }
}

}  // namespace halfstep::train
