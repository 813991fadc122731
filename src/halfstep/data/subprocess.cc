#include "halfstep/data/subprocess.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "halfstep/core/error.h"

extern "C" char** environ;

namespace halfstep::data {
namespace {

constexpr Subprocess::Duration kGrace{2000};
constexpr int64_t kLastWordsBytes = 4096;

// Starts the child with `socket` as input and output; returns errno, 0 if all went well.
int spawn(const std::vector<std::string>& argv, int socket, int error_file, pid_t* pid) {
  std::vector<char*> pointers;
  for (const std::string& arg : argv) pointers.push_back(const_cast<char*>(arg.c_str()));
  pointers.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, socket, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, socket, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, error_file, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  const int error = posix_spawnp(pid, pointers[0], &actions, &attributes, pointers.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

}  // namespace

Subprocess::Subprocess(std::vector<std::string> argv) : name_(argv.at(0)) {
  // A socket instead of two pipes: MSG_NOSIGNAL then spares us SIGPIPE without touching the
  // program's signal handlers.
  int ends[2];
  check(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0,
        "Subprocess: socketpair failed");
  socket_ = ends[0];
  ::fcntl(socket_, F_SETFL, O_NONBLOCK);
  stderr_ = ::memfd_create("stderr", MFD_CLOEXEC);
  const int error = stderr_ < 0 ? errno : spawn(argv, ends[1], stderr_, &pid_);
  ::close(ends[1]);
  if (error != 0) {
    ::close(socket_);
    if (stderr_ >= 0) ::close(stderr_);
    throw SubprocessError(fmt::format("cannot start '{}': {}", name_, std::strerror(error)));
  }
}

Subprocess::~Subprocess() {
  ::close(socket_);
  if (pid_ > 0 && reap(kGrace).empty()) kill();
  ::close(stderr_);
}

void Subprocess::send(std::span<const std::byte> data, Duration limit) {
  const auto deadline = Clock::now() + limit;
  while (!data.empty()) {
    if (wait_for(POLLIN | POLLOUT, deadline) & POLLIN) {
      std::byte first;
      if (::recv(socket_, &first, 1, MSG_PEEK) == 1) fail(name_ + " answered before it was asked");
      fail_ended();
    }
    const ssize_t n = ::send(socket_, data.data(), data.size(), MSG_NOSIGNAL);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n < 0) fail_ended();
    data = data.subspan(static_cast<size_t>(n));
  }
}

void Subprocess::receive(std::span<std::byte> out, Duration limit) {
  const auto deadline = Clock::now() + limit;
  while (!out.empty()) {
    wait_for(POLLIN, deadline);
    const ssize_t n = ::recv(socket_, out.data(), out.size(), 0);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0) fail_ended();
    out = out.subspan(static_cast<size_t>(n));
  }
}

short Subprocess::wait_for(short events, Clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<Duration>(deadline - Clock::now());
    if (left.count() <= 0) fail(name_ + " did not answer in time");
    // At most an hour at once: poll takes an int.
    pollfd entry{socket_, events, 0};
    const int ready =
        ::poll(&entry, 1, static_cast<int>(std::min<int64_t>(left.count(), 3'600'000)));
    // The end of the child shows as POLLHUP, which recv then reports.
    if (ready > 0) return entry.revents & POLLHUP ? entry.revents | POLLIN : entry.revents;
    if (ready < 0 && errno != EINTR)
      fail(fmt::format("cannot wait for {}: {}", name_, std::strerror(errno)));
  }
}

void Subprocess::fail(const std::string& what) {
  if (pid_ > 0) kill();
  const std::string line = last_error_line();
  throw SubprocessError(line.empty() ? what : fmt::format("{}; its last words: {}", what, line));
}

void Subprocess::fail_ended() {
  const std::string how = pid_ > 0 ? reap(kGrace) : "has ended";
  fail(fmt::format("{} {}", name_, how.empty() ? "closed its output" : how));
}

std::string Subprocess::reap(Duration limit) {
  const auto deadline = Clock::now() + limit;
  for (;;) {
    int status = 0;
    const pid_t ended = ::waitpid(pid_, &status, WNOHANG);
    if (ended != 0) {
      pid_ = -1;
      if (ended > 0 && WIFSIGNALED(status))
        return fmt::format("was killed by signal {}", WTERMSIG(status));
      return fmt::format("ended with exit status {}", ended > 0 ? WEXITSTATUS(status) : -1);
    }
    if (Clock::now() >= deadline) return {};
    std::this_thread::sleep_for(Duration(1));
  }
}

void Subprocess::kill() {
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

std::string Subprocess::last_error_line() const {
  const int64_t size = ::lseek(stderr_, 0, SEEK_END);
  std::string text(std::clamp<int64_t>(size, 0, kLastWordsBytes), '\0');
  const ssize_t n =
      ::pread(stderr_, text.data(), text.size(), size - static_cast<int64_t>(text.size()));
  text.resize(std::max<ssize_t>(n, 0));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  const size_t newline = text.rfind('\n');
  return newline == std::string::npos ? text : text.substr(newline + 1);
}

}  // namespace halfstep::data
