// The system calls that change the disk (open to create, write, fsync, rename, mkdir, and unlinkat
// of std::filesystem) stand before libc's own in a program that links failing_calls.cc: each is
// counted, and one of them can be made to fail, or be the last thing that the process does.
// fsync does nothing more: a killed process loses nothing that the system already has.
#pragma once

namespace halfstep::testing {

struct Fault {
  bool kill = false;  // SIGKILL, a write half done; else the call fails with:
  int error = 0;
  int at_call = 1;  // from 1, counted from set_fault(), on the threads of:
  int rank = 0;     // see be_rank(); 0 is every thread that has not said otherwise
};

void set_fault(const Fault& fault);
// From here on all calls work. Returns whether the fault came.
bool clear_fault();

// This thread's calls are those of `rank`.
void be_rank(int rank);

}  // namespace halfstep::testing
