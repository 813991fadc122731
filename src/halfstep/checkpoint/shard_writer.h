// One rank's shard: which slices it holds in which order, how long it gets, and its bytes, streamed
// from the caller's memory with a checksum per chunk. Used by save_checkpoint, which decides where
// it goes and whether it counts.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "halfstep/checkpoint/manifest.h"
#include "halfstep/checkpoint/slice.h"
#include "halfstep/io/safetensors.h"

namespace halfstep::checkpoint {

class ShardWriter {
 public:
  // Throws InternalError for slices that are malformed. Refers to `slices`; their data are read by
  // write() alone.
  explicit ShardWriter(std::span<const TensorSlice> slices);

  // What a save writes because of these slices: exactly those of the shard, and as many as the
  // manifest may need to describe it.
  int64_t shard_bytes() const { return shard_bytes_; }
  int64_t manifest_bytes() const;

  // Writes the file and adds it with its slices to the manifest. Throws InputError if it cannot be
  // written, and Error soon after `give_up` (if any) has become true.
  void write(const std::filesystem::path& path, Manifest& manifest,
             const std::atomic<bool>* give_up) const;

 private:
  std::vector<const TensorSlice*> order_;  // in the file
  std::vector<io::SafetensorsSpec> specs_;
  io::SafetensorsHeader header_;
  std::string header_text_;
  int64_t shard_bytes_ = 0;
};

}  // namespace halfstep::checkpoint
