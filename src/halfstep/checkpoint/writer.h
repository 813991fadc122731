// Saves a checkpoint: DIR/step_XXXXXXXX/{shard_…safetensors, manifest.json} and DIR/latest
// (docs/checkpoint-format.md). At every instant DIR holds the previous checkpoint complete, or the
// new one: the folder is written under a temporary name, flushed, and renamed with the manifest
// already in it. A failure (disk full, …) is thrown after removing what was written. Tensors are
// streamed from the caller's memory; no copy is made. One save per DIR at a time.
//
// Several ranks save one checkpoint together: each writes a shard of its own slices, all into the
// same folder (on several machines, of a file system that they share). Rank 0 prepares and commits,
// with the manifest of all shards, only after every rank has said that its shard is on the disk.
// What fails on one rank fails on all.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "halfstep/checkpoint/retention.h"
#include "halfstep/checkpoint/slice.h"
#include "halfstep/checkpoint/train_state.h"
#include "halfstep/comm/communicator.h"
#include "halfstep/io/file.h"

namespace halfstep::checkpoint {

struct SaveResult {
  std::filesystem::path directory;    // DIR/step_XXXXXXXX
  int64_t bytes = 0;                  // of all its files; on rank 0, as the next two
  std::vector<std::string> warnings;  // leftovers of a killed save that were removed, one a line
  std::vector<int64_t> removed;       // checkpoints that the policy let go
  double milliseconds = 0;            // that the save took
};

struct SaveOptions {
  // Asked on rank 0 for `dir` before anything is created or removed.
  std::function<std::optional<int64_t>(const std::filesystem::path&)> free_bytes = io::free_bytes;
  // Set by another thread that cannot wait for the end: the save fails soon after, on all ranks.
  const std::atomic<bool>* give_up = nullptr;
};

// Throws InternalError for slices that are malformed or overlap, InputError if a file cannot be
// written or the disk has no room for all of them, Error with kCommunication if given up, and
// CommError. A complete checkpoint of the same iteration is replaced. Called by every rank, with
// the same `dir`, `state` and `policy`.
SaveResult save_checkpoint(const std::filesystem::path& dir, const TrainState& state,
                           std::span<const TensorSlice> slices, const RetentionPolicy& policy,
                           comm::Communicator& ranks, const SaveOptions& options = {});

}  // namespace halfstep::checkpoint
