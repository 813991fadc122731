#include "failing_calls.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>

namespace halfstep::testing {
namespace {

Fault fault;
std::atomic<int> calls_left = 0;  // 0: no fault is set, or it has come
thread_local int this_rank = 0;

bool is_next() { return calls_left == 1 && this_rank == fault.rank; }

// Called once for each call; true: it has to fail, with errno set. Removing never fails for want of
// space, but it can be cut short.
bool comes_now(bool removes = false) {
  if (calls_left == 0 || this_rank != fault.rank || (removes && !fault.kill)) return false;
  if (--calls_left > 0) return false;
  if (fault.kill) ::raise(SIGKILL);
  errno = fault.error;
  return true;
}

}  // namespace

void set_fault(const Fault& wanted) {
  fault = wanted;
  calls_left = wanted.at_call;
}

bool clear_fault() { return calls_left.exchange(0) == 0; }

void be_rank(int rank) { this_rank = rank; }

}  // namespace halfstep::testing

using halfstep::testing::comes_now;
using halfstep::testing::fault;
using halfstep::testing::is_next;

extern "C" {

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const int mode = (flags & O_CREAT) != 0 ? va_arg(rest, int) : 0;
  va_end(rest);
  if ((flags & O_CREAT) != 0 && comes_now()) return -1;
  return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}
ssize_t write(int fd, const void* data, size_t n) {
  if (is_next() && fault.kill) ::syscall(SYS_write, fd, data, n / 2);
  return comes_now() ? -1 : ::syscall(SYS_write, fd, data, n);
}
int fsync(int) { return comes_now() ? -1 : 0; }
int rename(const char* from, const char* to) {
  return comes_now() ? -1
                     : static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
int mkdir(const char* path, mode_t mode) {
  return comes_now() ? -1 : static_cast<int>(::syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}
int unlinkat(int fd, const char* path, int flags) {
  return comes_now(/*removes=*/true) ? -1
                                     : static_cast<int>(::syscall(SYS_unlinkat, fd, path, flags));
}
}
