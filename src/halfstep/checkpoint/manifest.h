// manifest.json: what a checkpoint holds and how to check it. Written last; a folder without a
// valid one is not a checkpoint. Text in, data out, and back: no tensors and no folders here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "halfstep/checkpoint/slice.h"
#include "halfstep/checkpoint/train_state.h"
#include "halfstep/core/error.h"

namespace halfstep::checkpoint {

inline constexpr int64_t kFormatVersion = 1;
inline constexpr int64_t kChunkBytes = int64_t{4} << 20;  // one checksum per chunk of a slice

struct StoredShard {
  std::string file;
  int64_t bytes = 0;
  int64_t header_bytes = 0;      // what stands before the data
  uint64_t header_checksum = 0;  // XXH3 of it
};

struct StoredSlice : Slice {
  int64_t shard = 0;                // index in Manifest::shards
  int64_t offset = 0;               // from the start of the file
  std::vector<uint64_t> checksums;  // XXH3 (64 bit) of each chunk; the last one may be short
};

struct Manifest {
  TrainState state;
  std::vector<StoredShard> shards;
  std::vector<StoredSlice> slices;
};

// Chunks of a slice of so many bytes.
constexpr int64_t num_chunks(int64_t bytes) { return (bytes + kChunkBytes - 1) / kChunkBytes; }
// Of one of them.
constexpr int64_t chunk_bytes(int64_t slice_bytes, int64_t index) {
  const int64_t rest = slice_bytes - index * kChunkBytes;
  return rest < kChunkBytes ? rest : kChunkBytes;
}

// A checkpoint of a later format. Its own type, since falling back to an older checkpoint would be
// the wrong answer to it.
class NewerFormatError : public InputError {
 public:
  using InputError::InputError;
};

std::string format_manifest(const Manifest& manifest);
// Throws InputError naming `file` and the key for anything malformed: slices outside their
// parameter or shard, overlapping slices, a wrong checksum of the manifest itself; NewerFormatError
// for a newer format.
Manifest parse_manifest(std::string_view text, const std::string& file);

}  // namespace halfstep::checkpoint
