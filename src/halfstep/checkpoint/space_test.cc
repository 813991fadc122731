// What a save asks of the disk before it begins, and of memory while it lasts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>

#include "halfstep/checkpoint/folder.h"
#include "halfstep/checkpoint/reader.h"
#include "halfstep/checkpoint/shard_writer.h"
#include "halfstep/checkpoint/test_checkpoint.h"
#include "halfstep/checkpoint/writer.h"
#include "halfstep/comm/thread_group.h"
#include "halfstep/core/error.h"
#include "halfstep/core/test_folder.h"

namespace halfstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using comm::Communicator;
using comm::run_ranks;
using ::testing::HasSubstr;

class SpaceTest : public ::testing::Test {
 protected:
  // Saves by three ranks on a disk with so many bytes free. Returns what rank 0 says against it,
  // and the others with it.
  std::string refusal(int64_t iteration, int64_t free) {
    std::string said = "saved";
    run_ranks(3, [&](Communicator& ranks) {
      const auto parts = parts_of<TensorSlice>(model_.tensors(), ranks.rank(), 3);
      const SaveOptions options{
          .free_bytes = [&](const fs::path&) -> std::optional<int64_t> { return free; }};
      try {
        save_checkpoint(dir_, test_state(iteration), parts, {}, ranks, options);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::kBadInput);
        if (ranks.rank() == 0) said = std::string(error.what()) + " / " + error.hint();
      }
      ranks.barrier();
    });
    return said;
  }
  int64_t stored_bytes(int64_t iteration) const {
    int64_t bytes = 0;
    for (const auto& entry : fs::directory_iterator(dir_ / step_name(iteration))) {
      bytes += static_cast<int64_t>(entry.file_size());
    }
    return bytes;
  }

  const TestTensors model_ = test_model(1);
  TestFolder folder_;
  const fs::path dir_ = folder_.path() / "run";
};

TEST_F(SpaceTest, TooLittleIsSaidBeforeAnythingIsCreated) {
  const std::string message = refusal(1, 1000);
  EXPECT_THAT(message, HasSubstr("'" + dir_.string() + "': the checkpoint needs "));
  EXPECT_THAT(message, HasSubstr("1000 B are free"));
  EXPECT_THAT(message, HasSubstr("--keep-last"));
  EXPECT_THAT(message, HasSubstr("another folder"));
  EXPECT_FALSE(fs::exists(dir_));
}

// Enough by its own reckoning is enough for all files, and no more than twice of it for so small a
// model, of which names and places are the larger part.
TEST_F(SpaceTest, WhatItAsksForIsWhatItTakes) {
  int64_t enough = 1000;
  while (refusal(1, enough) != "saved") enough += 500;
  EXPECT_GE(enough, stored_bytes(1));
  EXPECT_LT(enough, 2 * stored_bytes(1));
  // Of a real one the tensors are nearly all.
  TestTensors large;
  large.add(whole_slice(TensorKind::kMaster, "w", {1 << 20}, Dtype::kF32));
  const auto slices = large.tensors();
  const ShardWriter shard(slices);
  EXPECT_LT(shard.shard_bytes() + shard.manifest_bytes(), (4 << 20) + 2000);
}

// What a killed save has left is about to go, and makes room.
TEST_F(SpaceTest, LeftoversCountAsFree) {
  ASSERT_EQ(refusal(1, int64_t{1} << 40), "saved");
  const int64_t needed = 2 * stored_bytes(1);
  fs::copy(dir_ / step_name(1), dir_ / (step_name(2) + ".saving"));
  fs::copy(dir_ / step_name(1), dir_ / (step_name(1) + ".replaced"));
  EXPECT_EQ(leftover_bytes(dir_), 2 * stored_bytes(1));
  EXPECT_THAT(refusal(3, -leftover_bytes(dir_)), HasSubstr("are free"));
  EXPECT_TRUE(fs::exists(dir_ / (step_name(2) + ".saving")));  // nothing was removed
  EXPECT_EQ(refusal(3, needed - leftover_bytes(dir_)), "saved");
  EXPECT_EQ(leftover_bytes(dir_), 0);
}

TEST(FreeBytes, IsThatOfWhatIsThereOfAPath) {
  const TestFolder folder;
  const auto here = io::free_bytes(folder.path());
  ASSERT_TRUE(here.has_value());
  EXPECT_GT(*here, 0);
  // Others write on the same disk meanwhile.
  const auto below = io::free_bytes(folder.path() / "not" / "there");
  ASSERT_TRUE(below.has_value());
  EXPECT_NEAR(static_cast<double>(*below), static_cast<double>(*here), 0x1p32);
  EXPECT_EQ(io::free_bytes("/proc/self"), std::nullopt);
}

// Kilobytes of a line of /proc/self/status, in bytes.
int64_t status_bytes(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key)) return 1024 * std::stoll(line.substr(key.size()));
  }
  ADD_FAILURE() << "no " << key;
  return 0;
}

// The most memory that `body` had resident at a time, beyond what there was before.
template <typename Body>
int64_t growth_during(Body&& body) {
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak begins anew
  const int64_t before = status_bytes("VmRSS:");
  EXPECT_LT(status_bytes("VmHWM:") - before, int64_t{1} << 20) << "the kernel keeps an older peak";
  body();
  return status_bytes("VmHWM:") - before;
}

// 64 MiB of state per rank in tensors of 16 MiB (P09, P10): one copy of a tensor on both ranks, or
// one rank's gathering the other's, would be 32 MiB.
TEST(SpaceOfMemory, SavingAndLoadingTakeNoMoreThanABucketOnTopOfTheState) {
  constexpr int kRanks = 2;
  constexpr int64_t kBound = int64_t{16} << 20;
  const TestFolder folder;
  std::vector<TestTensors> states(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    for (const char* name : {"a", "b", "c", "d"}) {
      Slice part = whole_slice(TensorKind::kMaster, name, {8 << 20}, Dtype::kF32);
      part.start = rank * (4 << 20);
      part.numel = 4 << 20;
      states[rank].add(part);
    }
  }
  const auto on_all = [&](const std::function<void(Communicator&)>& body) {
    return growth_during([&] { run_ranks(kRanks, body); });
  };
  EXPECT_LT(on_all([&](Communicator& ranks) {
              save_checkpoint(folder.path(), test_state(1), states[ranks.rank()].tensors(), {},
                              ranks);
            }),
            kBound);
  // At the same cut, and at another one: rank 0 loads the halves that rank 1 holds, and the other
  // way round.
  for (const int shift : {0, 1}) {
    EXPECT_LT(on_all([&](Communicator& ranks) {
                TestTensors& mine = states[(ranks.rank() + shift) % kRanks];
                CheckpointReader(folder.path()).load(mine.mutable_slices());
              }),
              kBound);
  }
}

}  // namespace
}  // namespace halfstep::checkpoint
