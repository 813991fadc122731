// Reads element ranges of stored slices, one checksummed chunk at a time: straight into the
// caller's memory where all of a chunk is wanted, else by way of a buffer. Holds open files and
// that chunk; ascending ranges of a slice read each of its chunks once. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <vector>

#include "halfstep/checkpoint/manifest.h"
#include "halfstep/io/file.h"

namespace halfstep::checkpoint {

class ChunkReader {
 public:
  // Both must outlive the reader. `directory` is the step's folder.
  ChunkReader(const std::filesystem::path& directory, const Manifest& manifest);

  // Copies elements [first, first + count) of a slice of the manifest. Throws InputError naming
  // file, tensor and place if the header of its shard or a chunk does not match its checksum; `out`
  // may hold the damaged bytes then.
  void read(const StoredSlice& slice, int64_t first, int64_t count, void* out);
  // Reads and checks all of a slice.
  void verify(const StoredSlice& slice);

 private:
  const io::FileDescriptor& shard(int64_t index);
  // Reads all of a chunk into `out` and checks it, while the disk begins with the next one.
  void read_chunk(const StoredSlice& slice, int64_t index, std::span<std::byte> out);
  // The chunk's bytes, valid until the next call.
  std::span<const std::byte> chunk(const StoredSlice& slice, int64_t index);

  const std::filesystem::path& directory_;
  const Manifest& manifest_;
  std::map<int64_t, io::FileDescriptor> shards_;
  std::vector<std::byte> buffer_;
  const StoredSlice* buffered_slice_ = nullptr;
  int64_t buffered_index_ = -1;
};

}  // namespace halfstep::checkpoint
