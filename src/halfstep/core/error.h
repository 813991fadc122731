// Typed errors. Every failure a user can cause is an Error with the exit code of docs/interface.md:
// one line of what happened (what, got, expected, where) and one of what to do next.
// Thrown by any module on any thread; caught once, in apps/halfstep.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace halfstep {

enum class ExitCode : int {
  kOk = 0,
  kInternal = 1,       // our fault, a promised saving that did not appear included
  kUsage = 2,          // bad flags or config, found before anything is allocated
  kBadInput = 3,       // bad checkpoint, model or data file
  kOutOfMemory = 4,    // out of memory or over budget
  kCommunication = 5,  // communication failed, or another rank did
  kDiverged = 6,       // training diverged: non-finite steps
  kInterrupted = 130,  // stopped by a signal, after saving if asked to
};

class Error : public std::runtime_error {
 public:
  // `what` is one line without a final full stop; `hint` is the next thing to do, empty if none.
  Error(ExitCode code, const std::string& what, std::string hint = {})
      : std::runtime_error(what), code_(code), hint_(std::move(hint)) {}

  ExitCode code() const { return code_; }
  const std::string& hint() const { return hint_; }

 private:
  ExitCode code_;
  std::string hint_;
};

// The three kinds that most code throws.
class UsageError : public Error {
 public:
  explicit UsageError(const std::string& what, std::string hint = {})
      : Error(ExitCode::kUsage, what, std::move(hint)) {}
};

class InputError : public Error {
 public:
  explicit InputError(const std::string& what, std::string hint = {})
      : Error(ExitCode::kBadInput, what, std::move(hint)) {}
};

class InternalError : public Error {
 public:
  explicit InternalError(const std::string& what)
      : Error(ExitCode::kInternal, what, "this is a fault in halfstep; please report it") {}
};

// An invariant of our own code: cheap, on in every build.
inline void check(bool condition, const char* what) {
  if (!condition) throw InternalError(what);
}

}  // namespace halfstep
