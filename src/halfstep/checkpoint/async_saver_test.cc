// Saves in the background, by one rank and by several as threads.
#include "halfstep/checkpoint/async_saver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <latch>
#include <thread>

#include "halfstep/checkpoint/folder.h"
#include "halfstep/checkpoint/reader.h"
#include "halfstep/checkpoint/stream_copy.h"
#include "halfstep/checkpoint/test_checkpoint.h"
#include "halfstep/comm/single_rank.h"
#include "halfstep/comm/thread_group.h"
#include "halfstep/core/error.h"
#include "halfstep/core/test_folder.h"
#include "halfstep/core/thread_pool.h"
#include "halfstep/io/file.h"

namespace halfstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using comm::Communicator;
using comm::run_ranks;
using ::testing::HasSubstr;

int64_t bytes_of(std::span<const TensorSlice> slices) {
  int64_t bytes = 0;
  for (const TensorSlice& slice : slices) bytes += slice.bytes();
  return bytes;
}

// A rank's saver with its copy, and a thread pool of its own, as ranks here are threads.
struct Saver {
  Saver(Communicator& ranks, std::span<const TensorSlice> slices, SaveOptions options = {})
      : copy(static_cast<size_t>(bytes_of(slices))),
        pool(2),
        own_pool(pool),
        saver(ranks.duplicate(), copy, std::move(options)) {}

  std::vector<std::byte> copy;
  ThreadPool pool;
  ThreadPool::Override own_pool;
  AsyncSaver saver;
};

class AsyncSaverTest : public ::testing::Test {
 protected:
  TestFolder folder_;
  const fs::path dir_ = folder_.path() / "run";
};

TEST_F(AsyncSaverTest, WritesTheSameFilesAsASave) {
  const TestTensors model = test_model(1);
  for (const int size : {1, 3}) {
    const fs::path here = dir_ / std::to_string(size);
    run_ranks(size, [&](Communicator& ranks) {
      const auto parts = parts_of<TensorSlice>(model.tensors(), ranks.rank(), size);
      save_checkpoint(here / "sync", test_state(5), parts, {}, ranks);
      Saver mine(ranks, parts);
      mine.saver.start(here / "async", test_state(5), parts, {});
      const SaveResult result = mine.saver.wait();
      EXPECT_EQ(result.directory, here / "async/step_00000005");
      EXPECT_GT(result.milliseconds, 0);
    });
    int files = 0;
    for (const auto& entry : fs::directory_iterator(here / "sync/step_00000005")) {
      ++files;
      EXPECT_EQ(io::read_text_file(entry.path()),
                io::read_text_file(here / "async/step_00000005" / entry.path().filename()));
    }
    EXPECT_EQ(files, size + 1);
  }
}

// What is saved is what the slices held when start() returned.
TEST_F(AsyncSaverTest, TheSlicesMayChangeOnceItHasStarted) {
  comm::SingleRank ranks;
  TestTensors model = test_model(1);
  const auto slices = model.tensors();
  std::latch changed(1);
  Saver mine(ranks, slices, {.free_bytes = [&](const fs::path&) -> std::optional<int64_t> {
               changed.wait();  // the thread writes nothing before that
               return std::nullopt;
             }});
  mine.saver.start(dir_, test_state(1), slices, {});
  EXPECT_TRUE(mine.saver.under_way());
  EXPECT_FALSE(mine.saver.done());
  std::fill_n(model.at<uint16_t>(0), model.slices()[0].numel, uint16_t{0});
  changed.count_down();
  mine.saver.wait();
  EXPECT_FALSE(mine.saver.under_way());
  TestTensors loaded = empty_like(model);
  CheckpointReader(dir_).load(loaded.mutable_slices());
  EXPECT_EQ(loaded.bytes(), test_model(1).bytes());
}

TEST_F(AsyncSaverTest, SavesFollowEachOtherInTheSameMemory) {
  run_ranks(3, [&](Communicator& ranks) {
    const TestTensors first = test_model(1);
    Saver mine(ranks, parts_of<TensorSlice>(first.tensors(), ranks.rank(), 3));
    for (int64_t step = 1; step <= 5; ++step) {
      const TestTensors model = test_model(static_cast<uint64_t>(step));
      mine.saver.start(dir_, test_state(step),
                       parts_of<TensorSlice>(model.tensors(), ranks.rank(), 3), {.keep_last = 2});
      ranks.barrier();  // the step goes on over a communicator of its own
      mine.saver.wait();
    }
  });
  EXPECT_EQ(saved_iterations(dir_), (std::vector<int64_t>{4, 5}));
  TestTensors loaded = empty_like(test_model(5));
  CheckpointReader(dir_).load(loaded.mutable_slices());
  EXPECT_EQ(loaded.bytes(), test_model(5).bytes());
}

// A disk that is full: all ranks learn why, at wait(), and the next save is none the worse.
TEST_F(AsyncSaverTest, AFailureIsThatOfAllRanksAndTheNextSaveWorks) {
  const TestTensors model = test_model(1);
  std::atomic<bool> full = true;
  run_ranks(3, [&](Communicator& ranks) {
    const auto parts = parts_of<TensorSlice>(model.tensors(), ranks.rank(), 3);
    Saver mine(ranks, parts, {.free_bytes = [&](const fs::path&) -> std::optional<int64_t> {
                 return full ? 10 : int64_t{1} << 40;
               }});
    mine.saver.start(dir_, test_state(1), parts, {});
    try {
      mine.saver.wait();
      ADD_FAILURE() << "rank " << ranks.rank() << " saved";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadInput);
      EXPECT_THAT(error.what(), HasSubstr("10 B are free"));
    }
    ranks.barrier();
    full = false;
    mine.saver.start(dir_, test_state(2), parts, {});
    mine.saver.wait();
    ranks.barrier();
  });
  EXPECT_EQ(saved_iterations(dir_), std::vector<int64_t>{2});
}

// A rank that ends with a save under way does not wait for the disk, nor do the others: the ranks
// give it up together, and the checkpoint before stands.
TEST_F(AsyncSaverTest, ARankThatEndsGivesUpTheSaveOfAll) {
  const TestTensors model = test_model(1);
  std::latch ending(1), started(3);
  const auto body = [&](Communicator& ranks) {
    const auto parts = parts_of<TensorSlice>(model.tensors(), ranks.rank(), 3);
    save_checkpoint(dir_, test_state(1), parts, {}, ranks);
    Saver mine(ranks, parts, {.free_bytes = [&](const fs::path&) -> std::optional<int64_t> {
                 ending.wait();
                 return std::nullopt;
               }});
    mine.saver.start(dir_, test_state(2), parts, {});
    started.arrive_and_wait();
    if (ranks.rank() == 1) {
      std::thread([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));  // rank 1 is in ~AsyncSaver
        ending.count_down();
      }).detach();
      throw InputError("bad token file");
    }
    try {
      mine.saver.wait();
      ADD_FAILURE() << "rank " << ranks.rank() << " saved";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kCommunication);
    }
  };
  EXPECT_THAT([&] { run_ranks(3, body); }, ::testing::ThrowsMessage<InputError>("bad token file"));
  EXPECT_EQ(CheckpointReader(dir_).state().iteration, 1);
  EXPECT_EQ(saved_iterations(dir_), std::vector<int64_t>{1});
}

TEST(StreamCopy, CopiesAnyBytesToAnyPlace) {
  std::vector<std::byte> from(1000), to(1000);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 37);
  for (const size_t bytes : {0, 1, 15, 16, 63, 64, 65, 127, 128, 500}) {
    for (size_t at = 0; at < 70; ++at) {
      std::ranges::fill(to, std::byte{0xEE});
      stream_copy(to.data() + at, from.data() + 3 * at, bytes);
      for (size_t i = 0; i < to.size(); ++i) {
        const bool copied = i >= at && i < at + bytes;
        ASSERT_EQ(to[i], copied ? from[3 * at + i - at] : std::byte{0xEE}) << bytes << " to " << at;
      }
    }
  }
}

TEST_F(AsyncSaverTest, MisuseIsOurFault) {
  comm::SingleRank ranks;
  const TestTensors model = test_model(1);
  const auto slices = model.tensors();
  Saver mine(ranks, slices);
  mine.saver.start(dir_, test_state(1), slices, {});
  EXPECT_THROW(mine.saver.start(dir_, test_state(2), slices, {}), InternalError);
  mine.saver.wait();
  Saver small(ranks, std::span(slices).first(3));
  EXPECT_THROW(small.saver.start(dir_, test_state(3), slices, {}), InternalError);
}

}  // namespace
}  // namespace halfstep::checkpoint
