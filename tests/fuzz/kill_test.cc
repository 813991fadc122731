// A save that is killed, or whose disk fails, at every single system call that changes the disk:
// the previous checkpoint is always there complete, and the next save puts the folder in order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <random>
#include <string>

#include "failing_calls.h"
#include "halfstep/checkpoint/folder.h"
#include "halfstep/checkpoint/reader.h"
#include "halfstep/checkpoint/test_checkpoint.h"
#include "halfstep/checkpoint/writer.h"
#include "halfstep/comm/thread_group.h"
#include "halfstep/core/error.h"

namespace halfstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::halfstep::testing::clear_fault;
using ::halfstep::testing::set_fault;
using ::testing::HasSubstr;

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

  // Steps and what they hold, and `latest`: nothing of another name anywhere.
  void expect_no_leftovers() {
    for (const auto& entry : fs::recursive_directory_iterator(dir_)) {
      const std::string name = entry.path().filename().string();
      const bool in_step = entry.path().parent_path() != dir_;
      EXPECT_TRUE(in_step ? name == "manifest.json" || name.starts_with("shard_")
                          : name == "latest" || parse_step_name(name))
          << entry.path();
    }
  }

  // Runs a save in a child that is killed at its n-th call. False if it ended before that.
  bool killed_at(int n, uint64_t content, int64_t iteration, RetentionPolicy policy) {
    const pid_t child = ::fork();
    if (child == 0) {
      set_fault({.kill = true, .at_call = n});
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
      expect_no_leftovers();
    }
    EXPECT_GT(n, 20);  // every call was a place to die
  }

  fs::path dir_;
};

TEST_F(KillTest, AtEveryCallOfASaveThatReplacesAnOlderStep) { sweep(20); }
TEST_F(KillTest, AtEveryCallOfASaveOfTheSameStep) { sweep(10); }

TEST_F(KillTest, ADiskThatFailsAtAnyCallLeavesThePreviousOneAndNothingElse) {
  for (const auto& [error, hint] : {std::pair{ENOSPC, "free some space"}, {EIO, "the disk or"}}) {
    bool failed = true;
    int n = 1;
    for (; failed; ++n) {
      SCOPED_TRACE(std::string(std::strerror(error)) + " at call " + std::to_string(n));
      fs::remove_all(dir_);
      save(1, 10);
      set_fault({.error = error, .at_call = n});
      try {
        save(2, 20);
        failed = false;
      } catch (const InputError& said) {
        EXPECT_THAT(said.what(), HasSubstr(dir_.string()));
        EXPECT_THAT(said.what(), HasSubstr(std::strerror(error)));
        EXPECT_THAT(said.hint(), HasSubstr(hint));
      }
      EXPECT_EQ(clear_fault(), failed);
      expect_content(1, 2);
      expect_no_leftovers();
    }
    EXPECT_GT(n, 15);
  }
}

// Three ranks; each call of each of them fails once.
TEST_F(KillTest, ADiskThatFailsOneRankFailsAllWithItsCause) {
  const auto save_by_ranks = [&](uint64_t content, int64_t iteration) {
    std::map<int, std::string> said;
    std::mutex mutex;
    const TestTensors model = test_model(content);
    comm::run_ranks(3, [&](comm::Communicator& ranks) {
      ::halfstep::testing::be_rank(1 + ranks.rank());
      const auto parts = parts_of<TensorSlice>(model.tensors(), ranks.rank(), ranks.size());
      try {
        save_checkpoint(dir_, test_state(iteration), parts, {}, ranks);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::kBadInput);
        const std::lock_guard lock(mutex);
        said[ranks.rank()] = error.what();
      }
      ranks.barrier();
    });
    return said;
  };
  for (int rank = 0; rank < 3; ++rank) {
    for (const int error : {ENOSPC, EIO}) {
      bool failed = true;
      int n = 1;
      for (; failed; ++n) {
        SCOPED_TRACE("rank " + std::to_string(rank) + ", " + std::strerror(error) + " at call " +
                     std::to_string(n));
        fs::remove_all(dir_);
        ASSERT_TRUE(save_by_ranks(1, 10).empty());
        set_fault({.error = error, .at_call = n, .rank = 1 + rank});
        const auto said = save_by_ranks(2, 20);
        failed = clear_fault();
        EXPECT_EQ(said.size(), failed ? 3u : 0u);
        for (const auto& [who, what] : said) {
          EXPECT_THAT(what, HasSubstr(std::strerror(error)));
          EXPECT_THAT(what, HasSubstr(dir_.string()));
          EXPECT_EQ(what.starts_with("rank " + std::to_string(rank) + ": "), who != rank) << what;
        }
        expect_content(1, 2);
        ASSERT_TRUE(save_by_ranks(3, 30).empty());
        expect_content(3, 3);
        expect_no_leftovers();
      }
      EXPECT_GT(n, rank == 0 ? 15 : 8);
    }
  }
}

// Kills by the clock, as a scheduler does, over saves that follow each other.
TEST_F(KillTest, AtRandomMoments) {
  std::mt19937_64 random(5);
  save(1, 1);
  int64_t last = 1;
  for (int round = 0; round < 200; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (int64_t step = last + 1;; ++step) {
        save(static_cast<uint64_t>(step), step, {.keep_last = 2});
      }
    }
    ::usleep(static_cast<useconds_t>(5'000 + random() % 150'000));
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
