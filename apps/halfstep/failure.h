// What the program says and returns for an exception: an exit code of docs/interface.md §4, one
// line of what happened and one of what to do. Pure, and the only place that knows what libraries
// throw; called by main.
#pragma once

#include <exception>
#include <string>

#include "halfstep/core/error.h"

namespace halfstep::apps {

struct Failure {
  ExitCode code;
  std::string what;
  std::string hint;
};

// `error` must hold an exception.
Failure describe_failure(const std::exception_ptr& error);

}  // namespace halfstep::apps
