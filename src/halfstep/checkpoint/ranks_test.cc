// Several ranks save one checkpoint, and any number of them loads it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <mutex>

#include "halfstep/checkpoint/folder.h"
#include "halfstep/checkpoint/reader.h"
#include "halfstep/checkpoint/test_checkpoint.h"
#include "halfstep/checkpoint/writer.h"
#include "halfstep/comm/thread_group.h"
#include "halfstep/core/test_folder.h"

namespace halfstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using comm::Communicator;
using comm::run_ranks;
using ::testing::HasSubstr;

class RanksTest : public ::testing::Test {
 protected:
  TestFolder folder_;
  const fs::path dir_ = folder_.path() / "run";
};

TEST_F(RanksTest, WhatAnyNumberOfRanksSavedAnyNumberLoads) {
  const TestTensors saved = test_model(1);
  for (const int writers : {1, 2, 3, 4, 6, 8}) {
    run_ranks(writers, [&](Communicator& ranks) {
      const auto parts = parts_of<TensorSlice>(saved.tensors(), ranks.rank(), ranks.size());
      const SaveResult result = save_checkpoint(dir_, test_state(writers), parts, {}, ranks);
      EXPECT_EQ(result.directory, dir_ / step_name(writers));
      EXPECT_TRUE(fs::exists(result.directory / "manifest.json"));
    });
    const CheckpointReader reader(dir_);
    EXPECT_EQ(reader.state().iteration, writers);
    EXPECT_EQ(std::ssize(reader.manifest().shards), writers);
    reader.verify();
    for (const int readers : {1, 2, 3, 4, 6, 8}) {
      TestTensors loaded = empty_like(saved);
      run_ranks(readers, [&](Communicator& ranks) {
        reader.load(parts_of<MutableSlice>(loaded.mutable_slices(), ranks.rank(), ranks.size()));
      });
      EXPECT_EQ(loaded.bytes(), saved.bytes()) << writers << " -> " << readers;
    }
  }
}

// Rank 2 has a malformed slice: all ranks say so, the checkpoint from before is still the latest,
// and nothing is left behind.
TEST_F(RanksTest, WhatFailsOnOneRankFailsOnAllAndLeavesThePreviousCheckpoint) {
  const TestTensors model = test_model(1);
  const auto save = [&](Communicator& ranks, int64_t iteration) {
    save_checkpoint(dir_, test_state(iteration),
                    parts_of<TensorSlice>(model.tensors(), ranks.rank(), ranks.size()), {}, ranks);
  };
  run_ranks(4, [&](Communicator& ranks) { save(ranks, 1); });
  run_ranks(4, [&](Communicator& ranks) {
    try {
      auto parts = parts_of<TensorSlice>(model.tensors(), ranks.rank(), ranks.size());
      if (ranks.rank() == 2) parts.front().start = -1;
      save_checkpoint(dir_, test_state(2), parts, {}, ranks);
      ADD_FAILURE() << "rank " << ranks.rank() << " saved";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("checkpoint: weight of 'embed.weight'"));
      EXPECT_EQ(std::string(error.what()).starts_with("rank 2: "), ranks.rank() != 2);
    }
  });
  EXPECT_EQ(saved_iterations(dir_), std::vector<int64_t>{1});
  EXPECT_FALSE(fs::exists(dir_ / "step_00000002.saving"));
  EXPECT_EQ(CheckpointReader(dir_).state().iteration, 1);
  run_ranks(4, [&](Communicator& ranks) { save(ranks, 3); });
  CheckpointReader(dir_).verify();
}

// Overlapping parts would store an element twice: our fault, seen before the commit.
TEST_F(RanksTest, RanksThatSaveTheSameElementsAreRefused) {
  const TestTensors model = test_model(1);
  run_ranks(2, [&](Communicator& ranks) {
    EXPECT_THROW(save_checkpoint(dir_, test_state(1), model.tensors(), {}, ranks), Error);
  });
  EXPECT_TRUE(saved_iterations(dir_).empty());
}

}  // namespace
}  // namespace halfstep::checkpoint
