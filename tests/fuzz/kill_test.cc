// A save that is killed, or whose disk fails, at every single system call that changes the disk:
// the previous checkpoint is always there complete, and the next save puts the folder in order. The
// calls below stand before libc's own for this whole program, so each can be counted, and can be
// the last thing that a forked child does.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <random>

#include "halfstep/checkpoint/folder.h"
#include "halfstep/checkpoint/reader.h"
#include "halfstep/checkpoint/test_checkpoint.h"
#include "halfstep/checkpoint/writer.h"
#include "halfstep/core/error.h"

namespace {

enum class Failure { kNone, kKill, kDiskFull };
Failure failure = Failure::kNone;
int calls_left = 0;
int calls_seen = 0;

// Called before each system call; true: it has to fail with ENOSPC.
bool fails_now() {
  ++calls_seen;
  if (failure == Failure::kNone || --calls_left > 0) return false;
  if (failure == Failure::kKill) ::raise(SIGKILL);
  errno = ENOSPC;
  return true;
}

}  // namespace

extern "C" {
ssize_t write(int fd, const void* data, size_t n) {
  const bool last = failure == Failure::kKill && calls_left == 1;
  if (last) ::syscall(SYS_write, fd, data, n / 2);  // killed half-way
  return fails_now() ? -1 : ::syscall(SYS_write, fd, data, n);
}
int fsync(int fd) { return fails_now() ? -1 : static_cast<int>(::syscall(SYS_fsync, fd)); }
int rename(const char* from, const char* to) {
  return fails_now() ? -1
                     : static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
int mkdir(const char* path, mode_t mode) {
  return fails_now() ? -1 : static_cast<int>(::syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}
// Removing never fails for want of space, but it can be cut short.
int unlinkat(int fd, const char* path, int flags) {
  if (failure == Failure::kKill) fails_now();
  return static_cast<int>(::syscall(SYS_unlinkat, fd, path, flags));
}
}

namespace halfstep::checkpoint {
namespace {

namespace fs = std::filesystem;

class KillTest : public ::testing::Test {
 protected:
  KillTest() : dir_(fs::path(::testing::TempDir()) / ("kill." + std::to_string(::getpid()))) {
    fs::remove_all(dir_);
  }
  ~KillTest() override { fs::remove_all(dir_); }

  SaveResult save(uint64_t content, int64_t iteration, RetentionPolicy policy = {}) {
    return save_alone(dir_, test_state(iteration), test_model(content).tensors(), policy);
  }

  // The checkpoint that a reader finds is complete and is one of these two.
  void expect_content(uint64_t a, uint64_t b) {
    const CheckpointReader reader(dir_);
    reader.verify();
    TestTensors loaded = empty_like(test_model(a));
    reader.load(loaded.mutable_slices());
    EXPECT_TRUE(loaded.bytes() == test_model(a).bytes() || loaded.bytes() == test_model(b).bytes());
  }

  // Runs a save in a child that is killed at its n-th call. False if it ended before that.
  bool killed_at(int n, uint64_t content, int64_t iteration, RetentionPolicy policy) {
    const pid_t child = ::fork();
    if (child == 0) {
      failure = Failure::kKill;
      calls_left = n;
      save(content, iteration, policy);
      std::_Exit(0);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status) || status == 0);
    return WIFSIGNALED(status);
  }

  void sweep(int64_t iteration) {
    int n = 1;
    for (bool killed = true; killed; ++n) {
      SCOPED_TRACE("killed at call " + std::to_string(n));
      fs::remove_all(dir_);
      save(1, 10);
      killed = killed_at(n, 2, iteration, {.keep_last = 1});
      expect_content(1, 2);
      save(3, 30);
      expect_content(3, 3);
      for (const auto& entry : fs::directory_iterator(dir_)) {  // no leftovers of any kind
        const std::string name = entry.path().filename().string();
        EXPECT_TRUE(parse_step_name(name) || name == "latest") << name;
      }
    }
    EXPECT_GT(n, 15);  // every call was a place to die
  }

  fs::path dir_;
};

TEST_F(KillTest, AtEveryCallOfASaveThatReplacesAnOlderStep) { sweep(20); }
TEST_F(KillTest, AtEveryCallOfASaveOfTheSameStep) { sweep(10); }

TEST_F(KillTest, ADiskThatIsFullAtAnyCallLeavesThePreviousOneAndNothingElse) {
  bool failed = true;
  int n = 1;
  for (; failed; ++n) {
    SCOPED_TRACE("disk full at call " + std::to_string(n));
    fs::remove_all(dir_);
    save(1, 10);
    failure = Failure::kDiskFull;
    calls_left = n;
    try {
      save(2, 20);
      failed = false;
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(dir_.string()));
      EXPECT_THAT(error.what(), testing::HasSubstr("No space left"));
      EXPECT_THAT(error.hint(), testing::HasSubstr("free some space"));
    }
    failure = Failure::kNone;
    expect_content(1, 2);
    for (const auto& entry : fs::directory_iterator(dir_)) {
      const std::string name = entry.path().filename().string();
      EXPECT_TRUE(parse_step_name(name) || name == "latest") << name;
    }
  }
  EXPECT_GT(n, 10);
}

// Kills by the clock, as a scheduler does, over saves that follow each other.
TEST_F(KillTest, AtRandomMoments) {
  std::mt19937_64 random(5);
  save(1, 1);
  int64_t last = 1;
  for (int round = 0; round < 20; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (int64_t step = last + 1;; ++step) {
        save(static_cast<uint64_t>(step), step, {.keep_last = 2});
      }
    }
    ::usleep(static_cast<useconds_t>(20'000 + random() % 300'000));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    const CheckpointReader reader(dir_);
    EXPECT_GE(reader.state().iteration, last);
    last = reader.state().iteration;
    expect_content(static_cast<uint64_t>(last), static_cast<uint64_t>(last));
  }
  EXPECT_GT(last, 1);
}

}  // namespace
}  // namespace halfstep::checkpoint
