// Reads a checkpoint: its state, and any slices of its tensors from whatever slices cover them, so
// the layout that asks need not be the one that wrote. Every chunk that is read is verified; bytes
// that are not needed are not read. Memory: the caller's tensors and less than 16 MiB.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "halfstep/checkpoint/manifest.h"
#include "halfstep/checkpoint/slice.h"
#include "halfstep/checkpoint/train_state.h"

namespace halfstep::checkpoint {

struct LoadOptions {
  // --convert-state: bring states to the asked dtype (nearest), and the weights' FP32 values from
  // one kind of master to another. Without it any difference is an error.
  bool convert_state = false;
  // --allow-lossy-master: take BF16 weights for the missing FP32 values (with convert_state).
  bool allow_lossy_master = false;
  // Stored tensors that nobody asked for are fine (weights alone for eval, --no-load-optim).
  bool allow_unrequested = false;
};

struct LoadReport {
  std::vector<std::string> conversions;  // one line per converted tensor, to be logged
  int64_t split_ties = 0;                // values that lost one ulp on the way to a split master
};

class CheckpointReader {
 public:
  // `path`: a step_XXXXXXXX folder, or the folder above it; there `latest` names the checkpoint,
  // or if that is missing or incomplete, the newest complete one is taken (see warnings()).
  // Throws InputError if there is none, if a shard is missing or has another size, or if the format
  // is newer than this program reads.
  explicit CheckpointReader(const std::filesystem::path& path);

  const std::filesystem::path& directory() const { return directory_; }  // the step_ folder
  const TrainState& state() const { return manifest_.state; }
  const Manifest& manifest() const { return manifest_; }
  const std::vector<std::string>& warnings() const { return warnings_; }
  // Shape of each stored parameter, by name.
  const std::map<std::string, std::vector<int64_t>>& parameters() const { return parameters_; }

  // Fills all slices. If anything is missing, unexpected, or of another shape or dtype, one
  // InputError lists all of it and nothing is written. A damaged chunk is an InputError that names
  // file and tensor; it and those before it have been written by then.
  LoadReport load(std::span<const MutableSlice> slices, const LoadOptions& options = {}) const;

  // Reads and checks every byte.
  void verify() const;

 private:
  std::filesystem::path directory_;
  Manifest manifest_;
  std::vector<std::string> warnings_;
  std::map<std::string, std::vector<int64_t>> parameters_;
};

// True if `path` is a checkpoint or a folder with one (so that callers can tell it from a Hugging
// Face folder).
bool is_checkpoint(const std::filesystem::path& path);

}  // namespace halfstep::checkpoint
