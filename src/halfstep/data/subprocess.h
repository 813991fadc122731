// A child process that we talk to in binary over its standard input and output. Every wait has a
// deadline and notices the child's death, so the parent never hangs and never gets SIGPIPE.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace halfstep::data {

// The child ended, fell silent or spoke out of turn. what() says which, with the last line that it
// wrote to its standard error. After this the child is dead.
class SubprocessError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Subprocess {
 public:
  using Duration = std::chrono::milliseconds;

  // Starts argv[0], found on PATH. The child has a process group of its own: Ctrl-C reaches us, and
  // the child ends when its input does. Throws SubprocessError if it cannot be started.
  explicit Subprocess(std::vector<std::string> argv);
  // Closes the child's input, gives it two seconds to end, then kills it.
  ~Subprocess();
  Subprocess(const Subprocess&) = delete;
  Subprocess& operator=(const Subprocess&) = delete;

  // Throws SubprocessError also if the child writes before it has been told everything: a child
  // that does not read would block us.
  void send(std::span<const std::byte> data, Duration limit);
  // Fills all of `out`.
  void receive(std::span<std::byte> out, Duration limit);
  // Kills the child and throws SubprocessError with `what` and the child's last words.
  [[noreturn]] void fail(const std::string& what);

 private:
  using Clock = std::chrono::steady_clock;
  // Waits for `events`; throws when the deadline passes first.
  short wait_for(short events, Clock::time_point deadline);
  [[noreturn]] void fail_ended();
  // Waits up to `limit` for the end. Returns how the child ended, empty if it has not.
  std::string reap(Duration limit);
  void kill();
  std::string last_error_line() const;

  std::string name_;
  int socket_ = -1;
  int stderr_ = -1;  // a file in memory: nobody has to drain it
  pid_t pid_ = -1;
};

}  // namespace halfstep::data
