#include "halfstep/checkpoint/chunk_reader.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "halfstep/core/error.h"
#include "halfstep/io/checksum.h"

namespace halfstep::checkpoint {
namespace {

constexpr const char* kDamagedHint =
    "the file is damaged: load another checkpoint, or copy this one again";

}  // namespace

ChunkReader::ChunkReader(const std::filesystem::path& directory, const Manifest& manifest)
    : directory_(directory), manifest_(manifest) {}

const io::FileDescriptor& ChunkReader::shard(int64_t index) {
  const auto it = shards_.find(index);
  if (it != shards_.end()) return it->second;
  const StoredShard& stored = manifest_.shards[static_cast<size_t>(index)];
  io::FileDescriptor file(directory_ / stored.file, O_RDONLY);
  std::vector<std::byte> header(static_cast<size_t>(stored.header_bytes));
  file.read_at(0, header);
  if (io::checksum(header.data(), header.size()) != stored.header_checksum) {
    throw InputError(
        fmt::format("{}: the header does not match its checksum", file.path().string()),
        kDamagedHint);
  }
  return shards_.emplace(index, std::move(file)).first->second;
}

void ChunkReader::read_chunk(const StoredSlice& slice, int64_t index, std::span<std::byte> out) {
  const io::FileDescriptor& file = shard(slice.shard);
  const int64_t begin = index * kChunkBytes;
  file.read_at(slice.offset + begin, out);
  const int64_t end = begin + std::ssize(out);
  if (end < slice.bytes()) {
    file.start_reading(slice.offset + end, std::min(kChunkBytes, slice.bytes() - end));
  }
  if (io::checksum(out.data(), out.size()) != slice.checksums[static_cast<size_t>(index)]) {
    throw InputError(
        fmt::format("{}: tensor '{}': bytes {} to {} of {} do not match their checksum",
                    file.path().string(), format_slice_name(slice), begin, end, slice.bytes()),
        kDamagedHint);
  }
}

std::span<const std::byte> ChunkReader::chunk(const StoredSlice& slice, int64_t index) {
  if (buffered_slice_ == &slice && buffered_index_ == index) return buffer_;
  buffered_slice_ = nullptr;
  buffer_.resize(static_cast<size_t>(chunk_bytes(slice.bytes(), index)));
  read_chunk(slice, index, buffer_);
  buffered_slice_ = &slice;
  buffered_index_ = index;
  return buffer_;
}

void ChunkReader::read(const StoredSlice& slice, int64_t first, int64_t count, void* out) {
  int64_t position = first * dtype_bytes(slice.dtype);
  const int64_t end = position + count * dtype_bytes(slice.dtype);
  auto* destination = static_cast<std::byte*>(out);
  while (position < end) {
    const int64_t index = position / kChunkBytes, within = position % kChunkBytes;
    int64_t n = chunk_bytes(slice.bytes(), index);
    if (within == 0 && n <= end - position) {
      read_chunk(slice, index, {destination, static_cast<size_t>(n)});
    } else {
      n = std::min(n - within, end - position);
      std::memcpy(destination, chunk(slice, index).data() + within, static_cast<size_t>(n));
    }
    destination += n;
    position += n;
  }
}

void ChunkReader::verify(const StoredSlice& slice) {
  for (int64_t i = 0; i < num_chunks(slice.bytes()); ++i) chunk(slice, i);
}

}  // namespace halfstep::checkpoint
